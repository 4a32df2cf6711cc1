"""Joins the ranks of a contestant with torch.distributed's gloo."""

import datetime

import torch
import torch.distributed as dist


def add_arguments(parser):
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world_size", type=int, required=True)
    parser.add_argument("--rendezvous", required=True, help="a file that does not exist yet")
    parser.add_argument("--timeout_s", type=float, default=120)


def join(arguments):
    """One thread a rank, as every contestant has."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method="file://" + arguments.rendezvous,
        rank=arguments.rank,
        world_size=arguments.world_size,
        timeout=datetime.timedelta(seconds=arguments.timeout_s),
    )
