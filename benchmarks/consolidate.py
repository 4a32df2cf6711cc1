"""consolidate and consolidate_rpc: all optimizer state of the recipe to rank 0, two ranks."""

import recipe
from harness.benchmark import Benchmark

_BYTES = 2 * 4 * recipe.PARAMETERS


class Consolidate(Benchmark):
    name = "consolidate"
    title = "640 MB of Adam's state of %s to one rank, 2 ranks" % recipe.TITLE

    @staticmethod
    def _ours(start, name, title, role, *arguments):
        return start(name, title, role, "optshard-bench-consolidate", list(arguments))

    def _peer(self, name, title, optimizer):
        return self.peer(name, title, "peer", "consolidate.py", ["--optimizer=" + optimizer])

    def contestants(self):
        return [
            self._ours(self.sharded, "ours", "optshard", "ours"),
            self._ours(self.attached, "attached", "optshard, attached to a server", "reference"),
            self._peer("zero", "torch ZeRO", "zero_bucket_view"),
            self._peer("oss", "fairscale OSS", "oss"),
        ]


class ConsolidateRpc(Benchmark):
    name = "consolidate_rpc"
    title = "the same 640 MB pulled over gRPC from both owners, on the loopback"

    def contestants(self):
        addresses = ",".join(self.free_address() for _ in range(2))
        return [
            self.sharded("ours", "optshard", "ours", "optshard-bench-consolidate", ["--by=rpc"]),
            self.program(
                "bytes",
                "bare streams of ByteBuffers",
                "limit: gRPC",
                "optshard-bench-bytes",
                ["--bytes=%d" % _BYTES, "--addresses=" + addresses],
            ),
        ]
