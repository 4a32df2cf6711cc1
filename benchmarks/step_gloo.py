"""step_gloo: optimizer step plus publish of the recipe, two ranks with one thread each, over Gloo."""

import os

import recipe
from harness.benchmark import Benchmark


class StepGloo(Benchmark):
    name = "step_gloo"
    title = "step plus publish of %s, Adam, 2 ranks, 1 thread each, gradients in place" % recipe.TITLE

    def _optimizer(self, name, title, role, optimizer):
        arguments = ["--optimizer=" + optimizer]
        return self.peer(name, title, role, "optimizer_step.py", arguments, same_result=True)

    def _plane_transfer(self):
        meeting_place = self.meeting_place("transfer_plane")
        os.mkdir(meeting_place)
        arguments = [
            "--rendezvous=" + meeting_place,
            "--elements=%d" % recipe.PARAMETERS,
            "--timeout=%gs" % self.step_timeout_s,
        ]
        return self.program(
            "transfer_plane",
            "gloo transfer (optshard's plane)",
            "limit: transfer",
            "optshard-bench-transfer",
            arguments,
        )

    def contestants(self):
        return [
            self.sharded(
                "ours",
                "optshard",
                "ours",
                "optshard-bench-step",
                ["--plane=gloo", "--gradients=averaged"],
                same_result=True,
            ),
            self._optimizer("zero", "torch ZeRO", "peer", "zero"),
            self._optimizer("zero_bucket_view", "torch ZeRO, bucket view", "peer", "zero_bucket_view"),
            self._optimizer("oss", "fairscale OSS", "peer", "oss"),
            self._optimizer("replicated", "torch Adam, replicated", "reference", "replicated"),
            self.peer(
                "transfer_torch",
                "gloo transfer (torch)",
                "limit: transfer",
                "gloo_transfer.py",
                ["--elements=%d" % recipe.PARAMETERS],
            ),
            self._plane_transfer(),
            recipe.memory_bound(self, "memory bound of the update", world_size=2, replicas=1),
        ]
