"""A baseline without any transport: one process, with a thread for each replica.

It averages the gradients of all replicas in memory, steps fused Adam on the first replica's parameters,
and copies them to the other replicas. It is what PyTorch does for the same result where nothing has to
leave the process; it gives up a process for each rank. Driven as round_protocol.py says.
"""

import argparse

import bench_models
import fused_adam
import round_protocol
import torch


class Replicas:
    """The parameters of all replicas and their gradients."""

    def __init__(self, layers, count):
        first = list(bench_models.linear_layers(layers).parameters())
        self._parameters = [first] + [
            [parameter.detach().clone() for parameter in first] for _ in range(count - 1)
        ]
        self._gradients = [
            bench_models.gradients_for(first, 1 + replica) for replica in range(count)
        ]
        for parameter in first:
            parameter.grad = torch.empty_like(parameter)
        self._averages = [parameter.grad for parameter in first]
        self._optimizer = fused_adam.OPTIMIZERS["replicated"](first)

    def step(self):
        with torch.no_grad():
            for average, gradients in zip(self._averages, zip(*self._gradients)):
                torch.add(gradients[0], gradients[1], out=average)
                for gradient in gradients[2:]:
                    average.add_(gradient)
                average.div_(len(gradients))
            self._optimizer.step()
            for copy in self._parameters[1:]:
                torch._foreach_copy_(copy, self._parameters[0])

    def check(self):
        return bench_models.check(self._parameters[-1])


def main():
    driver = round_protocol.Driver()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--layers", type=int, default=20)
    arguments = parser.parse_args()
    if arguments.replicas < 2:
        parser.error("--replicas must be at least 2")
    torch.set_num_threads(arguments.replicas)
    replicas = Replicas(arguments.layers, arguments.replicas)
    driver.serve(replicas.step, replicas.check, {"torch": torch.__version__})


if __name__ == "__main__":
    main()
