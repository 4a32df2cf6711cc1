"""Loads exports/, the state dicts that optshard writes, with PyTorch, and steps with them.

    tools/setup_peers.sh            once: installs PyTorch and NumPy
    .venv/bin/python tests/client/golden/check_exports.py [DIRECTORY]

Each NAME.pt is read by torch.load(weights_only=True), loaded by torch.optim's optimizer, and has to
give the step that the optimizer takes with a state of its own.
"""

import os
import sys

import torch

from make_imports import SHAPES, STEPS
from make_state_dicts import gradient

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = [
    ("adamw", torch.optim.AdamW, {}),
    ("adam", torch.optim.Adam, {"amsgrad": True}),
    ("sgd", torch.optim.SGD, {"lr": 0.25, "momentum": 0.5}),
]


def step(parameters, optimizer, number):
    for index, parameter in enumerate(parameters):
        parameter.grad = gradient(number, index, parameter.shape)
    optimizer.step()


def check(path, optimizer_class, options):
    parameters = [torch.nn.Parameter(torch.full(shape, 1.0)) for shape in SHAPES]
    optimizer = optimizer_class(parameters, **options)
    for number in range(1, STEPS + 1):
        step(parameters, optimizer, number)
    copies = [torch.nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    loaded = optimizer_class(copies, **{"lr": 0.125})
    loaded.load_state_dict(torch.load(path, weights_only=True, mmap=True))
    step(parameters, optimizer, STEPS + 1)
    step(copies, loaded, STEPS + 1)
    for parameter, copy in zip(parameters, copies):
        torch.testing.assert_close(copy, parameter, rtol=1e-6, atol=1e-7)
    for parameter, copy in zip(parameters, copies):
        for name, value in optimizer.state[parameter].items():
            torch.testing.assert_close(
                loaded.state[copy][name], value, rtol=1e-6, atol=1e-7, check_dtype=name != "step"
            )


def main():
    directory = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "exports")
    for name, optimizer_class, options in CASES:
        check(os.path.join(directory, name + ".pt"), optimizer_class, options)
        print(name, "steps as torch.optim does")


if __name__ == "__main__":
    main()
