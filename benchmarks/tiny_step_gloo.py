"""tiny_step_gloo: a step of 10 parameters of 100 elements, two ranks, over TCP."""

import os

from harness.benchmark import Benchmark, each_on_a_core

_STEPS = 100  # in a round


class TinyStepGloo(Benchmark):
    name = "tiny_step_gloo"
    title = (
        "reduce, update and publish of 10 parameters of 100 elements over TCP, Adam, 2 ranks,"
        " each on its core"
    )

    def _peer(self, name, title, optimizer):
        arguments = [
            "--optimizer=" + optimizer,
            "--all_reduce",
            "--model=tiny",
            "--steps=%d" % _STEPS,
        ]
        return self.peer(
            name, title, "peer", "optimizer_step.py", arguments, same_result=True, steps=_STEPS
        )

    def contestants(self):
        ours = self.sharded(
            "ours",
            "optshard",
            "ours",
            "optshard-bench-step",
            ["--plane=gloo", "--model=tiny", "--steps=%d" % _STEPS],
            same_result=True,
            steps=_STEPS,
        )
        meeting_place = self.meeting_place("round_trip")
        os.mkdir(meeting_place)
        round_trip = self.program(
            "round_trip",
            "round trip over TCP",
            "limit: waking",
            "optshard-bench-tcp-ping-pong",
            ["--rendezvous=" + meeting_place, "--steps=%d" % _STEPS],
            steps=_STEPS,
        )
        return [
            each_on_a_core(contestant)
            for contestant in (
                ours,
                self._peer("all_reduce_adam", "all-reduce + torch Adam, replicated", "replicated"),
                self._peer("all_reduce_zero", "all-reduce + torch ZeRO", "zero_bucket_view"),
                self._peer("all_reduce_oss", "all-reduce + fairscale OSS", "oss"),
                round_trip,
            )
        ]
