"""A peer: whole iterations of the recipe under DistributedDataParallel: forward, backward, step,
zero_grad. Driven as round_protocol.py says.
"""

import argparse

import bench_models
import fused_adam
import gloo_group
import round_protocol
import torch
from torch.nn.parallel import DistributedDataParallel


def main():
    driver = round_protocol.Driver()
    parser = argparse.ArgumentParser(description=__doc__)
    gloo_group.add_arguments(parser)
    parser.add_argument("--optimizer", choices=sorted(fused_adam.OPTIMIZERS), required=True)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--rows", type=int, default=20, help="of a rank's batch")
    parser.add_argument("--zero", action="store_true", help="zero_grad(set_to_none=False)")
    arguments = parser.parse_args()
    gloo_group.join(arguments)
    model = DistributedDataParallel(
        bench_models.linear_layers(arguments.layers), gradient_as_bucket_view=True
    )
    parameters = list(model.parameters())
    optimizer = fused_adam.OPTIMIZERS[arguments.optimizer](parameters)
    loss = torch.nn.MSELoss()
    # The same batch each time, another on every rank.
    torch.manual_seed(100 + arguments.rank)
    inputs = torch.randn(arguments.rows, bench_models.WIDTH)
    targets = torch.randn(arguments.rows, bench_models.WIDTH)

    def iterate():
        loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not arguments.zero)

    driver.serve(iterate, lambda: bench_models.check(parameters), {"torch": torch.__version__})


if __name__ == "__main__":
    main()
