"""The models of the benchmarks: the same values in every contestant, as ../bench_models.cc."""

import torch

WIDTH = 2000
_TINY_PARAMETERS = 10
_TINY_ELEMENTS = 100


def linear_layers(layers):
    """The recipe has 20."""
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)])


def tiny_parameters():
    torch.manual_seed(0)
    return [
        torch.nn.Parameter(torch.randn(_TINY_ELEMENTS)) for _ in range(_TINY_PARAMETERS)
    ]


def gradients_for(parameters, seed):
    """Other values on every rank, or the same where they are averages already."""
    gradients = [torch.empty_like(parameter.detach()) for parameter in parameters]
    fill_gradients(gradients, seed)
    return gradients


def fill_gradients(gradients, seed):
    """With the values that gradients_for gives them."""
    torch.manual_seed(seed)
    for gradient in gradients:
        gradient.copy_(torch.randn(gradient.shape) * 1e-3)


def rows_of(gradient, every):
    """Sparse: one row in `every`, from the first on."""
    rows = torch.arange(0, gradient.shape[0], every)
    return torch.sparse_coo_tensor(
        rows.unsqueeze(0), gradient[rows], gradient.shape, is_coalesced=True
    )


def check(parameters):
    """What tells a wrong update or a parameter that was not published."""
    magnitudes = squares = 0.0
    for parameter in parameters:
        value = parameter.detach().double()
        magnitudes += value.abs().sum().item()
        squares += value.square().sum().item()
    return {"sum_of_magnitudes": magnitudes, "sum_of_squares": squares}
