"""step_polled: the recipe's step while somebody looks into the job with grpc_cli once a second."""

import dataclasses
import os
import subprocess
import threading

import recipe
from harness import rounds
from harness.benchmark import Benchmark

_STEPS = 40  # a round: some seconds
_PERIOD_S = 1.0
_GRPC_CLI = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ".cache", "grpc_cli", "grpc_cli"
)


class _Poller:
    """Asks once a second, or as soon as the last answer is there."""

    def __init__(self, coordinator, method, request):
        self._command = [_GRPC_CLI, "call", coordinator, "optshard.v1." + method, request]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answered = 0
        self.errors = []

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self):
        while not self._stop.is_set():
            with subprocess.Popen(
                self._command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "no_grpc_proxy": "127.0.0.1"},
            ) as call:
                ended = threading.Thread(target=self._end_with_the_round, args=(call,))
                ended.start()
                text = call.communicate()[0]
                ended.join()
            if call.returncode == 0 and "unanswered" not in text:
                self.answered += 1
            elif not self._stop.is_set():
                self.errors.append(text.strip()[-300:])
            self._stop.wait(_PERIOD_S)

    def _end_with_the_round(self, call):
        while call.poll() is None:
            if self._stop.wait(0.05):
                call.terminate()
                return


# What each contestant but the first is asked.
_POLLS = {
    "statistics": ("JobInspection.GetStatistics", "page_size: 100"),
    "described": ("JobInspection.DescribeJob", ""),
    "client": ("Coordinator.GetStatus", "ranks: 1"),
}


class StepPolled(Benchmark):
    name = "step_polled"
    title = (
        "%d steps of %s, Adam, 2 ranks, 1 thread each, while grpc_cli asks once a second"
        % (_STEPS, recipe.TITLE)
    )

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._coordinators = {}
        self._polls = []

    def _job(self, name, title, role):
        self._coordinators[name] = self.free_address()
        arguments = [
            "--gradients=reduce",
            "--plane=shm",
            "--steps=%d" % _STEPS,
            "--embedded_coordinator=" + self._coordinators[name],
        ]
        return self.program(
            name, title, role, "optshard-bench-step", arguments, same_result=True, steps=_STEPS
        )

    def contestants(self):
        return [
            self._job("statistics", "statistics of all slots", "ours"),
            self._job("described", "what each rank does", "reference"),
            self._job("client", "the coordinator alone: what grpc_cli itself costs", "reference"),
            self._job("unseen", "nobody asks", "peer"),
        ]

    def _measure(self, group, timeout_s):
        name = group.contestant.name
        if name not in _POLLS:
            return rounds.milliseconds_of_step(group, timeout_s)
        with _Poller(self._coordinators[name], *_POLLS[name]) as poller:
            figure = rounds.milliseconds_of_step(group, timeout_s)
        self._polls.append((name, poller))
        return figure

    def run(self, contestants, options):
        return rounds.run(contestants, dataclasses.replace(options, measure=self._measure))

    def finish(self, entries, out):
        lines = []
        for name in _POLLS:
            pollers = [poller for poller_name, poller in self._polls if poller_name == name]
            errors = [error for poller in pollers for error in poller.errors]
            lines.append("%s: %d polls were answered before the round ended, warm-up included, and %d "
                         "failed%s" % (name, sum(poller.answered for poller in pollers), len(errors),
                                       "; the last: " + errors[-1] if errors else ""))
        return "\n".join("- " + line for line in lines)
