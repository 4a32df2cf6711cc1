"""tiny_step: a step of 10 parameters of 100 elements, two ranks, beside a round trip between two
processes."""

import os

from harness.benchmark import Benchmark, each_on_a_core

_STEPS = 1000  # in a round
_PEERS_STEPS = 100  # of the peers, which take a hundred times as long


class TinyStep(Benchmark):
    name = "tiny_step"
    title = (
        "reduce, update and publish of 10 parameters of 100 elements, Adam, 2 ranks, each on its core"
    )

    @staticmethod
    def _ours(start, name, title, role, *arguments):
        arguments = ["--model=tiny", "--steps=%d" % _STEPS, *arguments]
        return start(name, title, role, "optshard-bench-step", arguments, steps=_STEPS)

    def _peer(self, name, title, optimizer):
        arguments = [
            "--optimizer=" + optimizer,
            "--all_reduce",
            "--model=tiny",
            "--steps=%d" % _PEERS_STEPS,
        ]
        return self.peer(name, title, "peer", "optimizer_step.py", arguments, steps=_PEERS_STEPS)

    def _ping_pong(self, name, title, role):
        arguments = ["--rendezvous=" + self.meeting_place(name), "--steps=%d" % _STEPS]
        return self.program(name, title, role, "optshard-bench-ping-pong", arguments, steps=_STEPS)

    def contestants(self):
        apart = [
            self._ours(self.sharded, "ours", "optshard", "ours", "--plane=shm"),
            self._ours(self.attached, "attached", "optshard, attached to a server", "reference"),
            self._ours(self.sharded, "gloo", "optshard over Gloo", "reference", "--plane=gloo"),
            self._peer("all_reduce_adam", "all-reduce + torch Adam, replicated", "replicated"),
            self._peer("all_reduce_zero", "all-reduce + torch ZeRO", "zero_bucket_view"),
            self._peer("all_reduce_oss", "all-reduce + fairscale OSS", "oss"),
            self._ping_pong("ping_pong", "round trip by futexes", "limit: waking"),
        ]
        together = self._ping_pong(
            "ping_pong_one_core", "round trip by futexes, both on one core", "reference"
        )
        one_core = sorted(os.sched_getaffinity(0))[:1]
        return [*map(each_on_a_core, apart), each_on_a_core(together, one_core)]
