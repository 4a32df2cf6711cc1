"""The model of the recipe and its gradients: the same values in every contestant and on every rank."""

import torch

LAYERS = 20
WIDTH = 2000


def parameters_with_gradients():
    """Gradients are in place and stay: what is measured is the optimizer alone."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    parameters = list(model.parameters())
    torch.manual_seed(1)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape) * 1e-3
    return parameters


def check(parameters):
    """What tells a wrong update or a parameter that was not published."""
    magnitudes = squares = 0.0
    for parameter in parameters:
        value = parameter.detach().double()
        magnitudes += value.abs().sum().item()
        squares += value.square().sum().item()
    return {"sum_of_magnitudes": magnitudes, "sum_of_squares": squares}
