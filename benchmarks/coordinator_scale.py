"""coordinator_scale: joining, heartbeats and the coordinator's memory with up to 10,000 simulated ranks."""

import dataclasses
import os

from harness import chart, memory, report, rounds
from harness.benchmark import Benchmark, Part
from harness.contestant import Contestant, Service

_RANKS = (1000, 2000, 5000, 10000)
_PARAMETERS = (100, 5000)
_LONGEST_PLAN_MS = 10_000
# Of the heartbeats' period.
_LONGEST_ANSWER = 0.1
# The coordinator's memory, a rank: what was measured at all sizes, and half as much again.
_MOST_KB_A_RANK = 60
# Joining thousands of ranks takes longer than a round of the other benchmarks. The simulated ranks
# wait a little less, and the coordinator longer, so that it is they who say which rank is missing.
_ROUND_TIMEOUT_S = 300


class _Size:
    """One size of the job, and what was measured beside the time until all have the plan."""

    def __init__(self, ranks, parameters):
        self.ranks = ranks
        self.parameters = parameters
        self.figures = {}


class CoordinatorScale(Benchmark):
    name = "coordinator_scale"
    title = "from the last join until all ranks have the plan, simulated ranks"

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._sizes = {}

    def _contestant(self, name, size):
        directory = self.meeting_place(name)
        os.mkdir(directory)
        port_file = os.path.join(directory, "port")
        address = self.free_address()
        coordinator = [
            os.path.join(self.binaries, "optshard-coordinator"),
            "--listen=" + address,
            "--world_size=%d" % size.ranks,
            "--join_timeout=%ds" % (2 * _ROUND_TIMEOUT_S),
            "--job=benchmark",
            "--port_file=" + port_file,
        ]
        members = [
            os.path.join(self.binaries, "optshard-bench-coordinator"),
            "--coordinator=" + address,
            "--world_size=%d" % size.ranks,
            "--parameters=%d" % size.parameters,
        ]
        services = [Service(coordinator, port_file)]
        return Contestant(name, "optshard-coordinator", "ours", [members], services=services)

    def parts(self):
        for parameters in _PARAMETERS:
            for ranks in _RANKS:
                name = "%s_%d_%d" % (self.name, parameters, ranks)
                size = self._sizes[name] = _Size(ranks, parameters)
                title = "%s: %d ranks, %d parameters" % (self.title, ranks, parameters)
                yield Part(name, title, [self._contestant(name, size)])

    def run(self, contestants, options):
        """One job of each size: all ranks but one join, then the last one does, and then nothing but
        heartbeats happens for a while."""
        (contestant,) = contestants
        size = self._sizes[contestant.name]
        resident = []

        def measure(group, timeout_s):
            if not resident:
                resident.append(memory.resident_bytes(group.services()))
            milliseconds = group.run_round(timeout_s)
            resident.append(memory.resident_bytes(group.services()))
            return milliseconds

        result = rounds.run([contestant], dataclasses.replace(
            options, rounds=1, warm_up=1, round_timeout_s=_ROUND_TIMEOUT_S, measure=measure))
        if contestant.name in result.samples:
            (figures,) = result.checks[contestant.name]
            size.figures = {
                **figures,
                "plan_ms": result.samples[contestant.name][0],
                "memory_mb": resident[-1] / 1e6,
                "memory_kb_a_rank": (resident[-1] - resident[0]) / 1e3 / size.ranks,
            }
            for name, problem in _problems(size).items():
                result.failures[name] = "%s: %s" % (contestant.name, problem)
        return result

    def finish(self, entries, out):
        sizes = [size for size in self._sizes.values() if size.figures]
        if not sizes:
            return ""
        series = []
        for key, title in (
            ("plan_ms", "plan, ms"),
            ("heartbeat_max_ms", "slowest heartbeat, ms"),
            ("memory_kb_a_rank", "memory a rank, kB"),
        ):
            for parameters in _PARAMETERS:
                points = {s.ranks: s.figures[key] for s in sizes if s.parameters == parameters}
                if points:
                    series.append(("%s, %d params" % (title, parameters), points))
        title = "coordinator, %d cores" % len(os.sched_getaffinity(0))
        drawing = chart.line_chart(title, "ranks", "ms, kB", series)
        with open(os.path.join(out, "coordinator_scale.svg"), "w", encoding="utf-8") as file:
            file.write(drawing)
        header = ["ranks, parameters", "plan, ms", "message, bytes", "period, ms", "heartbeat p99, ms",
                  "slowest, ms", "slowest while joining, ms", "memory, MB", "kB a rank"]
        rows = [
            ["%d, %d" % (size.ranks, size.parameters)]
            + ["%.1f" % size.figures[key] for key in (
                "plan_ms", "plan_message_bytes", "period_ms", "heartbeat_p99_ms", "heartbeat_max_ms",
                "heartbeat_max_ms_while_joining", "memory_mb", "memory_kb_a_rank")]
            for size in sizes
        ]
        return "\n".join(["## %s" % self.name, "", *report.table(header, rows), ""])


def _problems(size):
    """What the coordinator promises and did not hold, by name."""
    found = {}
    figures = size.figures
    if figures["plan_ms"] > _LONGEST_PLAN_MS:
        found["plan"] = "all have the plan after %.0f ms, expected at most %d" % (
            figures["plan_ms"], _LONGEST_PLAN_MS)
    for key, when in (("heartbeat_max_ms", ""), ("heartbeat_max_ms_while_joining", " while ranks joined")):
        if figures[key] > _LONGEST_ANSWER * figures["period_ms"]:
            found[key] = "a heartbeat took %.0f ms%s, expected at most a tenth of the period, %.0f ms" % (
                figures[key], when, figures["period_ms"])
    if figures["memory_kb_a_rank"] > _MOST_KB_A_RANK:
        found["memory"] = "the coordinator has %.0f kB a rank, expected at most %d" % (
            figures["memory_kb_a_rank"], _MOST_KB_A_RANK)
    return found
