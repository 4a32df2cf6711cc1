"""Loads exports/, what optshard writes, with the libraries of others.

    tools/setup_peers.sh            once: installs PyTorch and NumPy
    .venv/bin/python -m pip install --no-deps safetensors==0.8.0 huggingface_hub==2.4.0
    .venv/bin/python tests/client/golden/check_exports.py [DIRECTORY]

Each NAME.pt is read by torch.load(weights_only=True), loaded by torch.optim's optimizer, and has to
give the step that the optimizer takes with a state of its own. NAME.safetensors, as safetensors
reads it, has to have the same tensors and groups. model/ is read by safetensors file by file, and
by huggingface_hub through its index, and has to have the bits of a model that PyTorch has trained.
"""

import glob
import json
import os
import sys

import torch
from huggingface_hub import load_torch_model
from safetensors import safe_open
from safetensors.torch import load_file

from make_imports import SHAPES, STEPS, Model, fill
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


def expect_same(actual, expected):
    """In type, shape and each value."""
    assert actual.keys() == expected.keys(), (actual.keys(), expected.keys())
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor, rtol=0, atol=0)


def check_safetensors(path, torch_path):
    state_dict = torch.load(torch_path, weights_only=True)
    expected = {
        f"state.{index}.{name}": tensor
        for index, slots in state_dict["state"].items()
        for name, tensor in slots.items()
    }
    expect_same(load_file(path), expected)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "pt", metadata
    as_json = [
        {
            key: {"tuple": list(value)} if isinstance(value, tuple) else value
            for key, value in group.items()
        }
        for group in state_dict["param_groups"]
    ]
    assert json.loads(metadata["param_groups"]) == as_json, metadata


def trained_model():
    """Stepped as exported_model_test.cc does."""
    model = Model()
    parameters = list(model.parameters())
    with torch.no_grad():
        for index, parameter in enumerate(parameters):
            fill(index, parameter)
    optimizer = torch.optim.SGD(parameters, lr=0.25)
    for number in range(1, STEPS + 1):
        for index, parameter in enumerate(parameters):
            parameter.grad = gradient(number, index, parameter.shape).to(parameter.dtype)
        optimizer.step()
    return model


def check_model(directory):
    expected = {name: value.detach() for name, value in trained_model().named_parameters()}
    tensors = {}
    files = {}
    for path in glob.glob(os.path.join(directory, "*.safetensors")):
        for name, tensor in load_file(path).items():
            tensors[name] = tensor
            files[name] = os.path.basename(path)
    expect_same(tensors, expected)
    with open(os.path.join(directory, "model.safetensors.index.json"), encoding="utf-8") as file:
        index = json.load(file)
    assert index["weight_map"] == files, index
    size = sum(tensor.numel() * tensor.element_size() for tensor in expected.values())
    assert index["metadata"]["total_size"] == size, index
    model = Model()
    # Its buffers are no parameters, and not there.
    loaded = load_torch_model(model, directory, strict=False)
    assert not loaded.unexpected_keys, loaded
    expect_same({name: value.detach() for name, value in model.named_parameters()}, expected)


def main():
    directory = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "exports")
    for name, optimizer_class, options in CASES:
        check(os.path.join(directory, name + ".pt"), optimizer_class, options)
        print(name, "steps as torch.optim does")
        path = os.path.join(directory, name)
        check_safetensors(path + ".safetensors", path + ".pt")
        print(name, "has the same tensors and groups as safetensors reads it")
    check_model(os.path.join(directory, "model"))
    print("the model has the same bits, read by safetensors and by huggingface_hub")


if __name__ == "__main__":
    main()
