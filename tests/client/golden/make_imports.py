"""Writes the files in imports/: states of optimizers as PyTorch and other libraries save them.

    tools/setup_peers.sh            once: installs PyTorch, fairscale and DeepSpeed
    .venv/bin/python -m pip install --no-deps bitsandbytes==0.50.2 safetensors==0.8.0 \
        huggingface_hub==2.4.0
    .venv/bin/python tests/client/golden/make_imports.py

    adamw.pt, adam.pt, sgd.pt   state_dict() of torch.optim's
    zero.pt                     of ZeroRedundancyOptimizer, consolidated, of two ranks
    oss.pt                      of fairscale's OSS, consolidated, of two ranks
    bitsandbytes.pt             of AdamW8bit, with blocks of 256
    bitsandbytes_2048.pt        its values in blocks of 2048, as versions before 0.45 had them, and
                                without the wrapping of newer ones
    bitsandbytes_float.pt       every 97th element of both in float32, by bitsandbytes itself
    universal/                  what DeepSpeed's ds_to_universal writes
    model/model.pt              state_dict() of a module of several types, with buffers
    model/model.safetensors     of the same by safetensors
    model/sharded/              of the same by huggingface_hub, in files of at most 64 bytes of tensors
    model/optimizer.pt          of its AdamW, with the parameters' names

Each after two steps, with the gradients of make_state_dicts.gradient: the model's from what `fill`
gives, of which a learning rate of 0 leaves every bit, all others from ones.
"""

import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from make_state_dicts import gradient

DIRECTORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "imports")
SHAPES = [(5, 3), (6, 20), (7,), ()]
LARGE_SHAPES = [(48, 96), (3,)]  # what has fewer than 4096 elements stays in float32 there
STEPS = 2


def stepped(make, shapes=SHAPES):
    parameters = [torch.nn.Parameter(torch.full(shape, 1.0)) for shape in shapes]
    optimizer = make(parameters)
    for number in range(1, STEPS + 1):
        for index, parameter in enumerate(parameters):
            parameter.grad = gradient(number, index, parameter.shape)
        optimizer.step()
    return parameters, optimizer


def save(name, state_dict):
    torch.save(state_dict, os.path.join(DIRECTORY, name))


def of_torch():
    save("adamw.pt", stepped(torch.optim.AdamW)[1].state_dict())
    save("adam.pt", stepped(lambda p: torch.optim.Adam(p, amsgrad=True))[1].state_dict())
    save("sgd.pt", stepped(lambda p: torch.optim.SGD(p, lr=0.25, momentum=0.5))[1].state_dict())


def of_rank(rank, rendezvous):
    dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=2)
    from fairscale.optim import OSS
    from torch.distributed.optim import ZeroRedundancyOptimizer

    for name, make in [
        ("zero.pt", lambda p: ZeroRedundancyOptimizer(p, torch.optim.AdamW, lr=1e-3)),
        ("oss.pt", lambda p: OSS(p, torch.optim.AdamW, lr=1e-3)),
    ]:
        optimizer = stepped(make)[1]
        if name == "zero.pt":
            optimizer.consolidate_state_dict(0)
        else:
            optimizer.consolidate_state_dict(recipient_rank=0)
        if rank == 0:
            save(name, optimizer.state_dict())
    dist.barrier()  # nobody leaves while another one still sends
    dist.destroy_process_group()


def of_ranks():
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(of_rank, (os.path.join(directory, "rendezvous"),), nprocs=2)


def of_bitsandbytes():
    from bitsandbytes.functional import dequantize_blockwise, quantize_blockwise
    from bitsandbytes.optim import AdamW8bit

    parameters, optimizer = stepped(lambda p: AdamW8bit(p, lr=1e-3), LARGE_SHAPES)
    save("bitsandbytes.pt", optimizer.state_dict())
    exact = {}
    for index, parameter in enumerate(parameters):
        state = optimizer.state[parameter]
        exact[index] = {}
        for number, slot in [(1, "exp_avg"), (2, "exp_avg_sq")]:
            values = state[f"state{number}"]
            if values.dtype == torch.uint8:
                qmap = state[f"qmap{number}"]
                values = dequantize_blockwise(
                    values, absmax=state[f"absmax{number}"], code=qmap, blocksize=256
                )
                codes, quant = quantize_blockwise(values, code=qmap, blocksize=2048)
                state[f"state{number}"], state[f"absmax{number}"] = codes, quant.absmax
                again = dequantize_blockwise(
                    codes, absmax=quant.absmax, code=qmap, blocksize=2048
                )
                exact[index][f"{slot}_2048"] = again.reshape(-1)[::97].clone()
            exact[index][slot] = values.reshape(-1)[::97].clone()
    save("bitsandbytes_2048.pt", torch.optim.Optimizer.state_dict(optimizer))
    save("bitsandbytes_float.pt", exact)


def of_deepspeed():
    """By the functions of ds_to_universal, over fragments of two ranks."""
    from deepspeed.checkpoint.ds_to_universal import dump_param_fragment, merge_tp_slices

    parameters, optimizer = stepped(torch.optim.AdamW, SHAPES[:2])
    universal = os.path.join(DIRECTORY, "universal")
    shutil.rmtree(universal, ignore_errors=True)
    with tempfile.TemporaryDirectory() as slices:
        for index, parameter in enumerate(parameters):
            name = f"layers.{index}.weight"
            state = optimizer.state[parameter]
            half = parameter.numel() // 2
            for slot, values in [
                ("fp32", parameter.detach()),
                ("exp_avg", state["exp_avg"]),
                ("exp_avg_sq", state["exp_avg_sq"]),
            ]:
                flat = values.reshape(-1)
                dump_param_fragment(slices, 0, 0, slot, flat, name, 0, half)
                rest = parameter.numel() - half
                dump_param_fragment(slices, 0, 1, slot, flat, name, half, rest)
            for rank in range(2):
                dump_param_fragment(slices, 0, rank, "step", state["step"], name, 0, 1)
            zero = os.path.join(universal, "zero")
            merge_tp_slices({}, zero, slices, 1, (name, [parameter.shape]))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.empty((), dtype=torch.float64))
        self.unused = torch.nn.Parameter(torch.empty((0, 4), dtype=torch.float16))
        self.encoder = torch.nn.Linear(3, 5, dtype=torch.bfloat16)
        self.norm = torch.nn.BatchNorm1d(7)


def fill(index, tensor):
    """Numbers that every type has exactly; the same in checkpoint_import_test.cc."""
    count = tensor.numel()
    numbers = ((7 * torch.arange(count) + 3 * index) % 251 - 125).div(16)
    tensor.copy_(numbers.reshape(tensor.shape))


def of_model():
    from huggingface_hub import save_torch_state_dict
    from safetensors.torch import save_file

    model = Model()
    parameters = list(model.parameters())
    with torch.no_grad():
        for index, parameter in enumerate(parameters):
            fill(index, parameter)
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=0.0)
    for number in range(1, STEPS + 1):
        for index, parameter in enumerate(parameters):
            parameter.grad = gradient(number, index, parameter.shape).to(parameter.dtype)
        optimizer.step()
    os.makedirs(os.path.join(DIRECTORY, "model", "sharded"))
    save("model/optimizer.pt", optimizer.state_dict())
    save("model/model.pt", model.state_dict())
    path = os.path.join(DIRECTORY, "model", "model.safetensors")
    save_file(model.state_dict(), path, metadata={"format": "pt"})
    sharded = os.path.join(DIRECTORY, "model", "sharded")
    save_torch_state_dict(model.state_dict(), sharded, max_shard_size=64)


def main():
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    os.makedirs(DIRECTORY)
    of_torch()
    of_ranks()
    of_bitsandbytes()
    of_deepspeed()
    of_model()


if __name__ == "__main__":
    main()
