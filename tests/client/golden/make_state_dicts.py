"""Writes torch_state_dicts.pt: state dicts of PyTorch's optimizers, and the steps around them.

    tools/setup_peers.sh            once: installs PyTorch and NumPy
    .venv/bin/python tests/client/golden/make_state_dicts.py

For each rule of PyTorch two optimizer steps, the state dict, and two more steps:

    {RULE: {"options": {...},       what the optimizer was constructed with
            "half": [tensor],       the parameters when the state dict was made
            "half_dict": {...},     that state dict
            "end": [tensor],        after two more steps
            "end_dict": {...}}}
"""

import os

import torch

SHAPES = [(5, 3), (6, 20), (4, 6)]
MORE_SHAPES = [(7,), ()]  # of rules that take what is no matrix

CASES = [
    ("adadelta", torch.optim.Adadelta, {}),
    ("adafactor", torch.optim.Adafactor, {}),
    ("adagrad", torch.optim.Adagrad, {"initial_accumulator_value": 0.5}),
    ("adam", torch.optim.Adam, {"amsgrad": True}),
    ("adamax", torch.optim.Adamax, {}),
    ("adamw", torch.optim.AdamW, {}),
    ("asgd", torch.optim.ASGD, {"t0": 1.0}),
    ("muon", torch.optim.Muon, {}),
    ("nadam", torch.optim.NAdam, {}),
    ("radam", torch.optim.RAdam, {}),
    ("rmsprop", torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
    ("rprop", torch.optim.Rprop, {}),
    ("sgd", torch.optim.SGD, {"lr": 0.25, "momentum": 0.5, "dampening": 0.25}),
    ("sparse_adam", torch.optim.SparseAdam, {}),
]


def gradient(step, index, shape):
    """The same numbers in torch_state_dicts_test.cc."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) + 7 * step + 3 * index) % 11 - 5).div(8).reshape(shape)


def run(rule, optimizer_class, options):
    shapes = SHAPES if rule in ("muon", "sparse_adam") else SHAPES + MORE_SHAPES
    parameters = [torch.nn.Parameter(torch.full(shape, 1.0)) for shape in shapes]
    optimizer = optimizer_class(parameters, **options)
    result = {"options": dict(options)}
    for step in range(1, 5):
        for index, parameter in enumerate(parameters):
            grad = gradient(step, index, parameter.shape)
            parameter.grad = grad.to_sparse(1) if rule == "sparse_adam" else grad
        optimizer.step()
        if step in (2, 4):
            when = "half" if step == 2 else "end"
            result[when] = [parameter.detach().clone() for parameter in parameters]
            state_dict = optimizer.state_dict()
            state_dict["state"] = {
                index: {
                    name: value.clone() if torch.is_tensor(value) else value
                    for name, value in sorted(values.items())
                }
                for index, values in state_dict["state"].items()
            }
            result[when + "_dict"] = state_dict
    return result


def main():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_state_dicts.pt")
    torch.save({rule: run(rule, cls, options) for rule, cls, options in CASES}, path)


if __name__ == "__main__":
    main()
