"""step_shm: reduce, update and publish of the recipe in shared memory, two ranks with one thread each."""

import recipe
from harness.benchmark import Benchmark


class StepShm(Benchmark):
    name = "step_shm"
    title = (
        "reduce, update and publish of %s, Adam, 2 ranks, 1 thread each, gradients in place"
        % recipe.TITLE
    )

    @staticmethod
    def _ours(start, name, title, role, *arguments):
        arguments = ["--gradients=reduce", *arguments]
        return start(name, title, role, "optshard-bench-step", arguments, same_result=True)

    def _peer(self, name, title, role, optimizer):
        arguments = ["--optimizer=" + optimizer, "--all_reduce"]
        return self.peer(name, title, role, "optimizer_step.py", arguments, same_result=True)

    def contestants(self):
        return [
            self._ours(self.sharded, "ours", "optshard", "ours", "--plane=shm"),
            self._ours(self.attached, "attached", "optshard, attached to a server", "reference"),
            self._ours(
                self.sharded,
                "share_parameters",
                "optshard, share_parameters",
                "reference",
                "--plane=shm",
                "--share_parameters",
            ),
            self._peer("all_reduce_adam", "all-reduce + torch Adam, replicated", "peer", "replicated"),
            self._peer("all_reduce_zero", "all-reduce + torch ZeRO", "peer", "zero_bucket_view"),
            self._peer("all_reduce_oss", "all-reduce + fairscale OSS", "peer", "oss"),
            self.one_process(
                "one_process",
                "torch Adam in one process of 2 threads, no transport",
                "reference",
                "one_process_step.py",
                ["--replicas=2"],
                same_result=True,
            ),
            recipe.memory_bound(self, "memory bound of the one-pass step", world_size=2, replicas=2),
        ]
