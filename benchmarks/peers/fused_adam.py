"""The peers' optimizers, all over fused Adam: the fastest that PyTorch has on a CPU."""

import torch

_ADAM = {"lr": 0.01, "fused": True}


def _zero(parameters, bucket_view):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(
        parameters,
        optimizer_class=torch.optim.Adam,
        parameters_as_bucket_view=bucket_view,
        **_ADAM,
    )


def _oss(parameters):
    from fairscale.optim.oss import OSS

    return OSS(parameters, optim=torch.optim.Adam, **_ADAM)


OPTIMIZERS = {
    "zero": lambda parameters: _zero(parameters, False),
    "zero_bucket_view": lambda parameters: _zero(parameters, True),
    # It always lays its parameters out as views of one bucket.
    "oss": _oss,
    "replicated": lambda parameters: torch.optim.Adam(parameters, **_ADAM),
}
