"""A limit: the published bytes of a step as raw gloo transfers of torch.distributed, nothing else.

Every rank sends its share of the parameters to each other rank, all at once. Driven as
round_protocol.py says.
"""

import argparse

import gloo_group
import round_protocol
import torch
import torch.distributed as dist


def main():
    driver = round_protocol.Driver()
    parser = argparse.ArgumentParser(description=__doc__)
    gloo_group.add_arguments(parser)
    parser.add_argument("--elements", type=int, required=True, help="float32 parameters, all ranks'")
    arguments = parser.parse_args()
    gloo_group.join(arguments)
    rank, world_size = arguments.rank, arguments.world_size
    elements = arguments.elements // world_size
    shares = [torch.full((elements,), float(owner)) for owner in range(world_size)]
    others = [other for other in range(world_size) if other != rank]

    def one_round():
        pending = [dist.irecv(shares[other], src=other) for other in others]
        pending += [dist.isend(shares[rank], dst=other) for other in others]
        for work in pending:
            work.wait()

    def check():
        return {"received": all(bool((shares[owner] == owner).all()) for owner in others)}

    driver.serve(one_round, check, {"torch": torch.__version__})


if __name__ == "__main__":
    main()
