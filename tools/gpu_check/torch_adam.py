"""PyTorch's own Adam on the first GPU beside a copy: a line of JSON for each of its forms."""

import json
import statistics
import sys

import torch

ROUNDS = 7
LAUNCHES = 5
PARTS = 20  # tensors: foreach keeps temporaries of all of them


def timed(run):
    run()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(LAUNCHES):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / LAUNCHES


def optimizer_of(options, elements, dtype):
    parameters = []
    for _ in range(PARTS):
        parameter = torch.nn.Parameter(0.02 * torch.randn(elements // PARTS, device="cuda", dtype=dtype))
        parameter.grad = 0.02 * torch.randn(elements // PARTS, device="cuda", dtype=dtype)
        parameters.append(parameter)
    return torch.optim.Adam(parameters, **options)


def main():
    elements = int(sys.argv[1]) if len(sys.argv) > 1 else 1000000000
    source = torch.randn(elements, device="cuda")
    target = torch.empty_like(source)
    forms = [
        ("fused float32", {"fused": True}, torch.float32, 28),
        ("foreach float32", {"foreach": True}, torch.float32, 28),
        ("fused capturable float32", {"fused": True, "capturable": True}, torch.float32, 28),
        ("foreach capturable float32", {"foreach": True, "capturable": True}, torch.float32, 28),
        ("fused bfloat16", {"fused": True}, torch.bfloat16, 14),
    ]
    print(json.dumps({"torch": torch.__version__, "device": torch.cuda.get_device_name()}), flush=True)
    for name, options, dtype, bytes_an_element in forms:
        optimizer = optimizer_of(options, elements, dtype)
        optimizer.step()
        milliseconds, shares = [], []
        for _ in range(ROUNDS):
            copy = timed(lambda: target.copy_(source))
            ms = timed(optimizer.step)
            milliseconds.append(ms)
            shares.append(bytes_an_element * elements / ms / (8 * elements / copy))
        ms = statistics.median(milliseconds)
        line = {
            "torch_adam": name,
            "ms": ms,
            "gb_a_second": bytes_an_element * elements / ms / 1e6,
            "share_of_copy": statistics.median(shares),
        }
        print(json.dumps(line), flush=True)
        del optimizer
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
