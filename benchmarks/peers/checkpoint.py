"""A peer: torch.distributed.checkpoint of a rank's half of the recipe's parameters and Adam state.

Driven as round_protocol.py says.
"""

import argparse
import os
import shutil

import gloo_group
import round_protocol
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

_TENSORS = 30  # parameters and two slots of ten layers
_ELEMENTS = 2000 * 2000 + 2000


class _Rounds:
    def __init__(self, arguments):
        self._rank = arguments.rank
        self._path = arguments.directory
        torch.manual_seed(arguments.rank)
        self._state = {
            "rank%d.%d" % (arguments.rank, i): torch.randn(_ELEMENTS) for i in range(_TENSORS)
        }
        self._saving = None

    def save(self):
        dcp.save(self._state, checkpoint_id=self._path)

    def start(self):
        self._saving = dcp.async_save(self._state, checkpoint_id=self._path)

    def load(self):
        dcp.load(self._state, checkpoint_id=self._path)

    def remove(self):
        if self._saving is not None:
            self._saving.result()
        dist.barrier()
        if self._rank == 0 and os.path.isdir(self._path):
            shutil.rmtree(self._path)
        dist.barrier()

    def keep(self):
        pass

    def check(self):
        return {}


def main():
    driver = round_protocol.Driver()
    parser = argparse.ArgumentParser(description=__doc__)
    gloo_group.add_arguments(parser)
    parser.add_argument("--round", choices=["save", "start", "load"], required=True,
                        help="start: async_save's call alone")
    parser.add_argument("--directory", required=True, help="it is not there yet")
    arguments = parser.parse_args()
    gloo_group.join(arguments)
    rounds = _Rounds(arguments)
    if arguments.round == "load":
        rounds.save()
    one_round = {"save": rounds.save, "start": rounds.start, "load": rounds.load}[arguments.round]
    after_round = rounds.keep if arguments.round == "load" else rounds.remove
    driver.serve(one_round, rounds.check, {"torch": torch.__version__}, after_round)


if __name__ == "__main__":
    main()
