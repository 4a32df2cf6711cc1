"""add_param_group: one Linear(2000, 2000) is added to four, in each round one more, two ranks."""

from harness.benchmark import Benchmark


class AddParamGroup(Benchmark):
    name = "add_param_group"
    title = "one more Linear(2000, 2000) a round, to 4 and those of the rounds before, 2 ranks"

    def _peer(self, name, title, optimizer):
        return self.peer(name, title, "peer", "add_param_group.py", ["--optimizer=" + optimizer])

    def contestants(self):
        program = "optshard-bench-add-group"
        return [
            self.sharded("ours", "optshard", "ours", program, []),
            self.attached("attached", "optshard, attached to a server", "reference", program, []),
            self._peer("zero", "torch ZeRO", "zero_bucket_view"),
            self._peer("oss", "fairscale OSS", "oss"),
        ]
