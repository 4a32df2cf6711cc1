"""Writes torch_goldens.bin: what PyTorch's optimizers make of known gradients.

    tools/setup_peers.sh            once: installs PyTorch and NumPy
    .venv/bin/python tests/server/update/golden/make_goldens.py

For each case 100 steps in float32 and in float64, with all slots, over 1,000 elements or the first of
them. Muon computes in bfloat16 whatever the parameter is; in place of PyTorch's, its values in float64 are
those of its formula written in NumPy, without bfloat16. The file:

    # a comment line, with the version of PyTorch
    case RULE NAME
    option NAME VALUE...            a flag, a number, several numbers, or a name
    shape EXTENT...                 of the parameter; without this line [1000]
    tensor NAME COUNT               "parameter", or a slot; without COUNT it has 1,000 values
    <COUNT float32, then COUNT float64, little-endian>
    ...
    end
"""

import os

import numpy
import torch

ELEMENTS = 1000
STEPS = 100


class Numbers:
    """The same numbers in torch_goldens.cc: 24 bits of a linear congruential generator, in [-1, 1)."""

    def __init__(self, seed):
        self._state = seed

    def take(self, count):
        values = numpy.empty(count, numpy.float32)
        for i in range(count):
            self._state = (self._state * 1664525 + 1013904223) % 2**32
            values[i] = (self._state >> 8) / 2**23 - 1
        return values


def data():
    """The parameter before the first step, and the gradients. Each element's gradients have a mean."""
    numbers = Numbers(1)
    parameter = numbers.take(ELEMENTS)
    mean = numbers.take(ELEMENTS)
    gradients = [numbers.take(ELEMENTS) + numpy.float32(0.5) * mean for _ in range(STEPS)]
    return parameter, gradients


# The shape of the parameter is [1000] where a case gives no other.
CASES = [
    ("adafactor", "Matrix", torch.optim.Adafactor, {}, (25, 40)),
    ("adafactor", "Vector", torch.optim.Adafactor, {}),
    ("adafactor", "Number", torch.optim.Adafactor, {"lr": 0.5, "d": 2.0}, ()),
    ("adafactor", "Batch", torch.optim.Adafactor, {"eps": (0.3, 0.9), "lr": 1.0}, (10, 4, 25)),
    ("adafactor", "Conv", torch.optim.Adafactor, {"beta2_decay": -0.3, "d": 1.5, "lr": 0.2}, (11, 10, 3, 3)),
    ("adafactor", "WeightDecayMaximize", torch.optim.Adafactor, {"weight_decay": 0.5, "maximize": True}, (20, 50)),
    (
        "adafactor",
        "VectorWeightDecayMaximize",
        torch.optim.Adafactor,
        {"weight_decay": 0.5, "maximize": True, "eps": (0.5, 1e-3), "lr": 0.1},
    ),
    ("adadelta", "Defaults", torch.optim.Adadelta, {}),
    ("adadelta", "ShortMemory", torch.optim.Adadelta, {"rho": 0.7, "eps": 1e-3, "lr": 0.5}),
    ("adadelta", "WeightDecayMaximize", torch.optim.Adadelta, {"weight_decay": 0.1, "maximize": True}),
    ("adagrad", "InitialValue", torch.optim.Adagrad, {"initial_accumulator_value": 0.3, "lr_decay": 0.05}),
    ("adam", "Amsgrad", torch.optim.Adam, {"amsgrad": True, "lr": 0.01}),
    ("adam", "WeightDecayMaximize", torch.optim.Adam, {"weight_decay": 0.1, "maximize": True}),
    ("adamax", "Defaults", torch.optim.Adamax, {}),
    ("adamax", "Betas", torch.optim.Adamax, {"betas": (0.8, 0.9), "eps": 1e-3, "lr": 0.01}),
    ("adamax", "WeightDecayMaximize", torch.optim.Adamax, {"weight_decay": 0.1, "maximize": True}),
    ("adamw", "Defaults", torch.optim.AdamW, {}),
    ("asgd", "Defaults", torch.optim.ASGD, {}),
    ("asgd", "Averaging", torch.optim.ASGD, {"t0": 30, "lambd": 0.1, "lr": 0.1, "alpha": 0.5}),
    ("asgd", "WeightDecayMaximize", torch.optim.ASGD, {"weight_decay": 0.1, "maximize": True}),
    ("nadam", "Defaults", torch.optim.NAdam, {}),
    ("nadam", "MomentumDecay", torch.optim.NAdam, {"betas": (0.8, 0.9), "momentum_decay": 0.1}),
    ("nadam", "WeightDecayMaximize", torch.optim.NAdam, {"weight_decay": 0.1, "maximize": True}),
    ("nadam", "Decoupled", torch.optim.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("radam", "Defaults", torch.optim.RAdam, {}),
    ("radam", "ShortMemory", torch.optim.RAdam, {"betas": (0.8, 0.9), "lr": 0.01}),
    ("radam", "WeightDecayMaximize", torch.optim.RAdam, {"weight_decay": 0.1, "maximize": True}),
    ("radam", "Decoupled", torch.optim.RAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("rmsprop", "CenteredMomentum", torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
    ("rprop", "Defaults", torch.optim.Rprop, {}),
    ("rprop", "Etas", torch.optim.Rprop, {"etas": (0.7, 1.1), "step_sizes": (1e-3, 0.02), "lr": 0.005}),
    ("rprop", "Maximize", torch.optim.Rprop, {"maximize": True}),
    ("sgd", "Nesterov", torch.optim.SGD, {"momentum": 0.8, "nesterov": True, "weight_decay": 0.01}),
    ("sparse_adam", "Defaults", torch.optim.SparseAdam, {}),
    ("sparse_adam", "Maximize", torch.optim.SparseAdam, {"betas": (0.8, 0.9), "lr": 0.01, "maximize": True}),
]

MUON_CASES = [
    ("Defaults", {}, (40, 25)),
    ("Wide", {"nesterov": False, "momentum": 0.8, "weight_decay": 0.3}, (25, 40)),
    ("MatchesAdamW", {"adjust_lr_fn": "match_rms_adamw", "lr": 0.01}, (40, 25)),
    ("Coefficients", {"ns_coefficients": (2.0, -1.5, 0.5), "ns_steps": 8, "lr": 0.02}, (25, 40)),
]


def run(optimizer_class, options, dtype, shape=(ELEMENTS,)):
    """Name and values of the parameter and of each slot after the last step."""
    start, gradients = data()
    torch.set_default_dtype(dtype)  # of the slots that are one number a parameter

    def tensor(values):
        elements = torch.Size(shape).numel()
        return torch.from_numpy(values[:elements]).to(dtype, copy=True).reshape(shape)

    parameter = torch.nn.Parameter(tensor(start))
    sparse = optimizer_class is torch.optim.SparseAdam
    if not sparse and optimizer_class is not torch.optim.Muon:
        options = {"foreach": False, **options}
    optimizer = optimizer_class([parameter], **options)
    for gradient in gradients:
        parameter.grad = tensor(gradient).to_sparse(1) if sparse else tensor(gradient)
        optimizer.step()
    slots = {
        name: value
        for name, value in optimizer.state[parameter].items()
        # Others are one number for the whole parameter.
        if name != "step" and torch.is_tensor(value) and value.dim() == parameter.dim()
    }
    return {"parameter": parameter.detach(), **slots}


def orthogonal(direction, coefficients, steps):
    """The Newton-Schulz iteration in float64."""
    a, b, c = coefficients
    x = direction / numpy.linalg.norm(direction)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def true_muon(options, shape):
    """What run gives, in float64 throughout."""
    defaults = torch.optim.Muon([torch.zeros(shape)], **options).defaults
    lr, momentum = defaults["lr"], defaults["momentum"]
    if defaults["adjust_lr_fn"] == "match_rms_adamw":
        step_size = lr * 0.2 * max(shape) ** 0.5
    else:
        step_size = lr * max(1, shape[0] / shape[1]) ** 0.5
    start, gradients = data()
    parameter = start.astype(numpy.float64).reshape(shape)
    buffer = numpy.zeros(shape)
    for gradient in gradients:
        gradient = gradient.astype(numpy.float64).reshape(shape)
        buffer = momentum * buffer + (1 - momentum) * gradient
        direction = buffer
        if defaults["nesterov"]:
            direction = momentum * buffer + (1 - momentum) * gradient
        update = orthogonal(direction, defaults["ns_coefficients"], defaults["ns_steps"])
        parameter = (1 - lr * defaults["weight_decay"]) * parameter - step_size * update
    return {"parameter": torch.from_numpy(parameter), "momentum_buffer": torch.from_numpy(buffer)}


def text(value):
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return " ".join(repr(float(number)) for number in value)
    return repr(float(value))


def write_case(out, rule, name, options, shape, peer, truth):
    out.write(f"case {rule} {name}\n".encode())
    for option, value in options.items():
        out.write(f"option {option} {text(value)}\n".encode())
    if shape != (ELEMENTS,):
        out.write(" ".join(["shape", *map(str, shape)]).encode() + b"\n")
    for tensor, values in peer.items():
        count = "" if values.numel() == ELEMENTS else f" {values.numel()}"
        out.write(f"tensor {tensor}{count}\n".encode())
        out.write(values.numpy().astype("<f4").tobytes())
        out.write(truth[tensor].numpy().astype("<f8").tobytes())


def main():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_goldens.bin")
    with open(path, "wb") as out:
        out.write(b"# PyTorch %s\n" % torch.__version__.split("+")[0].encode())
        for rule, name, optimizer_class, options, *shapes in CASES:
            shape = shapes[0] if shapes else (ELEMENTS,)
            peer = run(optimizer_class, options, torch.float32, shape)
            truth = run(optimizer_class, options, torch.float64, shape)
            write_case(out, rule, name, options, shape, peer, truth)
        for name, options, shape in MUON_CASES:
            peer = run(torch.optim.Muon, options, torch.float32, shape)
            write_case(out, "muon", name, options, shape, peer, true_muon(options, shape))
        out.write(b"end\n")


if __name__ == "__main__":
    main()
