"""Writes torch_goldens.bin: what the references of the rules make of known gradients.

    tools/setup_peers.sh            once: installs PyTorch and NumPy
    .venv/bin/python tests/server/update/golden/make_goldens.py

For each case 100 steps in float32 and in float64, with all slots, over 1,000 elements or the first of
them. The reference is PyTorch; Lion and LAMB, which it does not have, are their papers' algorithms in NumPy.

Of the rules that torch::optim does not have in C++ there are cases in the 16-bit types, too. Parameter and
gradients are rounded to the type first. In place of the step in float32 stands PyTorch's in that type, slots
included; "master" is the parameter that PyTorch makes in float32 of the same data.

Muon computes in bfloat16 whatever the parameter is; in place of PyTorch's, its values in float64 are
those of its formula written in NumPy, without bfloat16. The file:

    # a comment line, with the version of PyTorch
    case RULE NAME
    option NAME VALUE...            a flag, a number, several numbers, or a name
    dtype NAME                      of the parameter and the gradients; without this line float32
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
    ("adagrad", "WeightDecayMaximize", torch.optim.Adagrad, {"weight_decay": 0.1, "maximize": True, "eps": 1e-3}),
    ("adagrad", "InitialValue", torch.optim.Adagrad, {"initial_accumulator_value": 0.3, "lr_decay": 0.05}),
    ("adam", "Amsgrad", torch.optim.Adam, {"amsgrad": True, "lr": 0.01}),
    ("adam", "WeightDecayMaximize", torch.optim.Adam, {"weight_decay": 0.1, "maximize": True}),
    ("adamax", "Defaults", torch.optim.Adamax, {}),
    ("adamax", "Betas", torch.optim.Adamax, {"betas": (0.8, 0.9), "eps": 1e-3, "lr": 0.01}),
    ("adamax", "WeightDecayMaximize", torch.optim.Adamax, {"weight_decay": 0.1, "maximize": True}),
    ("adamw", "Defaults", torch.optim.AdamW, {}),
    ("adamw", "AmsgradMaximize", torch.optim.AdamW, {"amsgrad": True, "maximize": True, "betas": (0.8, 0.9)}),
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
    ("rmsprop", "WeightDecayMaximize", torch.optim.RMSprop, {"weight_decay": 0.1, "maximize": True, "alpha": 0.9}),
    ("rprop", "Defaults", torch.optim.Rprop, {}),
    ("rprop", "Etas", torch.optim.Rprop, {"etas": (0.7, 1.1), "step_sizes": (1e-3, 0.02), "lr": 0.005}),
    ("rprop", "Maximize", torch.optim.Rprop, {"maximize": True}),
    ("sgd", "Nesterov", torch.optim.SGD, {"momentum": 0.8, "nesterov": True, "weight_decay": 0.01}),
    ("sgd", "DampeningMaximize", torch.optim.SGD, {"momentum": 0.9, "dampening": 0.3, "maximize": True}),
    ("sparse_adam", "Defaults", torch.optim.SparseAdam, {}),
    ("sparse_adam", "Maximize", torch.optim.SparseAdam, {"betas": (0.8, 0.9), "lr": 0.01, "maximize": True}),
]

MUON_CASES = [
    ("Defaults", {}, (40, 25)),
    ("Wide", {"nesterov": False, "momentum": 0.8, "weight_decay": 0.3}, (25, 40)),
    ("MatchesAdamW", {"adjust_lr_fn": "match_rms_adamw", "lr": 0.01}, (40, 25)),
    ("Coefficients", {"ns_coefficients": (2.0, -1.5, 0.5), "ns_steps": 8, "lr": 0.02}, (25, 40)),
]


# By their NumPy references below.
LION_CASES = [
    ("Defaults", {}),
    ("WeightDecay", {"lr": 0.01, "weight_decay": 0.5}),
    ("BetasMaximize", {"lr": 0.01, "betas": (0.5, 0.8), "maximize": True}),
]
LAMB_CASES = [
    ("Defaults", {}, (ELEMENTS,)),
    ("Matrix", {"lr": 0.01, "weight_decay": 0.5, "betas": (0.8, 0.9), "eps": 1e-3}, (25, 40)),
    ("Uncorrected", {"lr": 0.01, "bias_correction": False, "maximize": True}, (ELEMENTS,)),
    ("NotAdapted", {"lr": 0.01, "weight_decay": 0.0, "always_adapt": False}, (ELEMENTS,)),
]

# Of such sizes that parameters of 16 bits move.
HALF_SHAPE = (500,)
HALF_CASES = [
    ("adadelta", torch.optim.Adadelta, {"rho": 0.7, "eps": 1e-3, "lr": 0.5}, HALF_SHAPE),
    ("adafactor", torch.optim.Adafactor, {"lr": 0.05}, (20, 25)),
    ("adamax", torch.optim.Adamax, {"lr": 0.02, "eps": 1e-3}, HALF_SHAPE),
    ("asgd", torch.optim.ASGD, {"lr": 0.1, "lambd": 0.1, "alpha": 0.5, "t0": 30}, HALF_SHAPE),
    ("muon", torch.optim.Muon, {"lr": 0.02}, (20, 25)),
    ("nadam", torch.optim.NAdam, {"lr": 0.02, "eps": 1e-3}, HALF_SHAPE),
    ("radam", torch.optim.RAdam, {"lr": 0.02, "eps": 1e-3}, HALF_SHAPE),
    ("rprop", torch.optim.Rprop, {"lr": 0.01, "step_sizes": (1e-3, 0.1)}, HALF_SHAPE),
]


def run(optimizer_class, options, dtype, shape=(ELEMENTS,), rounded=torch.float32):
    """Name and values of the parameter and of each slot after the last step.

    Parameter and gradients are rounded to `rounded`; what is computed in is `dtype`.
    """
    start, gradients = data()
    # Of the slots that are one number a parameter.
    torch.set_default_dtype(torch.float64 if dtype == torch.float64 else torch.float32)

    def tensor(values):
        elements = torch.Size(shape).numel()
        return torch.from_numpy(values[:elements]).to(rounded).to(dtype, copy=True).reshape(shape)

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
        if name != "step" and torch.is_tensor(value)
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


def true_muon(options, shape, rounded=torch.float32):
    """What run gives, in float64 throughout."""
    defaults = torch.optim.Muon([torch.zeros(shape)], **options).defaults
    lr, momentum = defaults["lr"], defaults["momentum"]
    if defaults["adjust_lr_fn"] == "match_rms_adamw":
        step_size = lr * 0.2 * max(shape) ** 0.5
    else:
        step_size = lr * max(1, shape[0] / shape[1]) ** 0.5
    start, gradients = data()

    def matrix(values):
        values = torch.from_numpy(values[: shape[0] * shape[1]])
        return values.to(rounded).to(torch.float64).numpy().reshape(shape)

    parameter = matrix(start)
    buffer = numpy.zeros(shape)
    for gradient in map(matrix, gradients):
        buffer = momentum * buffer + (1 - momentum) * gradient
        direction = buffer
        if defaults["nesterov"]:
            direction = momentum * buffer + (1 - momentum) * gradient
        update = orthogonal(direction, defaults["ns_coefficients"], defaults["ns_steps"])
        parameter = (1 - lr * defaults["weight_decay"]) * parameter - step_size * update
    return {"parameter": torch.from_numpy(parameter), "momentum_buffer": torch.from_numpy(buffer)}


def lion(options, dtype):
    """Algorithm 2 of arXiv 2302.06675."""
    given = {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0, "maximize": False, **options}
    lr, decay, (beta1, beta2) = given["lr"], given["weight_decay"], given["betas"]
    start, gradients = data()
    parameter = start.astype(dtype)
    average = numpy.zeros_like(parameter)
    for gradient in gradients:
        gradient = gradient.astype(dtype) * dtype(-1 if given["maximize"] else 1)
        direction = numpy.sign(dtype(beta1) * average + dtype(1 - beta1) * gradient)
        parameter = parameter - dtype(lr) * (direction + dtype(decay) * parameter)
        average = dtype(beta2) * average + dtype(1 - beta2) * gradient
    return {"parameter": parameter, "exp_avg": average}


def lamb(options, dtype):
    """Algorithm 2 of arXiv 1904.00962 with phi(z) = z. Norms do not depend on the shape."""
    given = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 1e-2, "bias_correction": True,
             "always_adapt": True, "maximize": False, **options}
    beta1, beta2 = given["betas"]
    adapts = given["always_adapt"] or given["weight_decay"] != 0
    start, gradients = data()
    parameter = start.astype(dtype)
    average = numpy.zeros_like(parameter)
    squares = numpy.zeros_like(parameter)
    for step, gradient in enumerate(gradients, 1):
        gradient = gradient.astype(dtype) * dtype(-1 if given["maximize"] else 1)
        average = dtype(beta1) * average + dtype(1 - beta1) * gradient
        squares = dtype(beta2) * squares + dtype(1 - beta2) * gradient * gradient
        corrections = [1 - beta**step if given["bias_correction"] else 1.0 for beta in (beta1, beta2)]
        root = numpy.sqrt(squares / dtype(corrections[1]))
        direction = average / dtype(corrections[0]) / (root + dtype(given["eps"]))
        direction = direction + dtype(given["weight_decay"]) * parameter
        ratio = numpy.linalg.norm(parameter) / numpy.linalg.norm(direction) if adapts else dtype(1)
        parameter = parameter - dtype(given["lr"]) * ratio * direction
    return {"parameter": parameter, "exp_avg": average, "exp_avg_sq": squares}


def in_numpy(reference, options):
    """Of the reference, in float32 and in float64."""
    return [
        {name: torch.from_numpy(values) for name, values in reference(options, dtype).items()}
        for dtype in (numpy.float32, numpy.float64)
    ]


def half_case(optimizer_class, options, shape, half):
    """The parameter by PyTorch in the type and on float32 copies, each beside the truth."""
    if optimizer_class is torch.optim.Muon:
        truth = true_muon(options, shape, half)["parameter"]
    else:
        truth = run(optimizer_class, options, torch.float64, shape, half)["parameter"]
    peer = {
        name: run(optimizer_class, options, dtype, shape, half)["parameter"].float()
        for name, dtype in (("parameter", half), ("master", torch.float32))
    }
    return peer, {"parameter": truth, "master": truth}


def text(value):
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return " ".join(repr(float(number)) for number in value)
    return repr(float(value))


def write_case(out, rule, name, options, shape, peer, truth, dtype=""):
    out.write(f"case {rule} {name}\n".encode())
    for option, value in options.items():
        out.write(f"option {option} {text(value)}\n".encode())
    if dtype:
        out.write(f"dtype {dtype}\n".encode())
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
        for name, options in LION_CASES:
            write_case(out, "lion", name, options, (ELEMENTS,), *in_numpy(lion, options))
        for name, options, shape in LAMB_CASES:
            write_case(out, "lamb", name, options, shape, *in_numpy(lamb, options))
        for rule, optimizer_class, options, shape in HALF_CASES:
            for name, half in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
                both = half_case(optimizer_class, options, shape, half)
                write_case(out, rule, name, options, shape, *both, name)
        out.write(b"end\n")


if __name__ == "__main__":
    main()
