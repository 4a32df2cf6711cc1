"""A peer: add_param_group of a sharded optimizer in Python, one Linear(2000, 2000) a round.

Driven as round_protocol.py says.
"""

import argparse

import bench_models
import fused_adam
import gloo_group
import round_protocol
import torch


def main():
    driver = round_protocol.Driver()
    parser = argparse.ArgumentParser(description=__doc__)
    gloo_group.add_arguments(parser)
    parser.add_argument("--optimizer", choices=["zero_bucket_view", "oss"], required=True)
    parser.add_argument("--layers", type=int, default=4)
    arguments = parser.parse_args()
    gloo_group.join(arguments)
    parameters = list(bench_models.linear_layers(arguments.layers).parameters())
    for parameter, gradient in zip(parameters, bench_models.gradients_for(parameters, 1)):
        parameter.grad = gradient
    optimizer = fused_adam.OPTIMIZERS[arguments.optimizer](parameters)
    optimizer.step()
    added = []
    layers = [list(bench_models.linear_layers(1).parameters())]

    def add():
        optimizer.add_param_group({"params": layers[-1]})

    def after_round():
        added.extend(layers[-1])
        layers.append(list(bench_models.linear_layers(1).parameters()))

    def check():
        return bench_models.check(added)

    driver.serve(add, check, {"torch": torch.__version__}, after_round)


if __name__ == "__main__":
    main()
