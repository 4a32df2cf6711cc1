"""A peer: optimizer.step() of a sharded (or replicated) optimizer in Python, synchronisation included.

The gradients are in place: averages already, or each rank's own, which an all-reduce of theirs then
averages first. Driven as round_protocol.py says.
"""

import argparse

import bench_models
import fused_adam
import gloo_group
import masters
import round_protocol
import torch
from gradient_buckets import GradientBuckets


def _parameters(arguments):
    if arguments.model == "tiny":
        return bench_models.tiny_parameters()
    layers = bench_models.linear_layers(arguments.layers)
    return list(layers.to(getattr(torch, arguments.dtype)).parameters())


def _step_of(arguments, parameters):
    make = fused_adam.OPTIMIZERS[arguments.optimizer]
    optimizer = masters.Masters(parameters, make) if arguments.masters else make(parameters)
    if not arguments.all_reduce:
        for parameter, gradient in zip(parameters, bench_models.gradients_for(parameters, 1)):
            parameter.grad = gradient
        return optimizer.step
    buckets = GradientBuckets(
        parameters, bench_models.gradients_for(parameters, 1 + arguments.rank)
    )

    def reduce_and_step():
        buckets.average()
        optimizer.step()

    return reduce_and_step


def main():
    driver = round_protocol.Driver()
    parser = argparse.ArgumentParser(description=__doc__)
    gloo_group.add_arguments(parser)
    parser.add_argument("--optimizer", choices=sorted(fused_adam.OPTIMIZERS), required=True)
    parser.add_argument("--all_reduce", action="store_true")
    parser.add_argument("--model", choices=["layers", "tiny"], default="layers")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--masters", action="store_true", help="step float32 copies of the parameters")
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1, help="in a round")
    arguments = parser.parse_args()
    gloo_group.join(arguments)
    parameters = _parameters(arguments)
    step = _step_of(arguments, parameters)

    def one_round():
        for _ in range(arguments.steps):
            step()

    driver.serve(
        one_round,
        lambda: bench_models.check(parameters),
        {"torch": torch.__version__},
    )


if __name__ == "__main__":
    main()
