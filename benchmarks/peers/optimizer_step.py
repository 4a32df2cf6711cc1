"""A peer: optimizer.step() of a sharded (or replicated) optimizer in Python, synchronisation included.

Adam is fused: the fastest that PyTorch has on a CPU. Driven as round_protocol.py says.
"""

import argparse

import gloo_group
import recipe_model
import round_protocol
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


def main():
    driver = round_protocol.Driver()
    parser = argparse.ArgumentParser(description=__doc__)
    gloo_group.add_arguments(parser)
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), required=True)
    arguments = parser.parse_args()
    gloo_group.join(arguments)
    parameters = recipe_model.parameters_with_gradients()
    optimizer = OPTIMIZERS[arguments.optimizer](parameters)
    driver.serve(
        optimizer.step,
        lambda: recipe_model.check(parameters),
        {"torch": torch.__version__},
    )


if __name__ == "__main__":
    main()
