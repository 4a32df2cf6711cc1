#!/usr/bin/env python3
"""./run bench: optshard against its peers and against the machine's limits, all in one run.

Figures go to out/bench.json, a report to stdout and to out/bench.md. docs/benchmarks.md explains them.
"""

import argparse
import fnmatch
import json
import os
import signal
import sys

from add_param_group import AddParamGroup
from checkpoint import CheckpointLoad, CheckpointStall, CheckpointWrite
from consolidate import Consolidate, ConsolidateRpc
from coordinator_scale import CoordinatorScale
from harness import machine, report, rounds, summary
from iteration_recipe import IterationRecipe
from peak_memory import PeakMemory
from rules import Rules
from scaling import Scaling
from step_8bit import Step8Bit
from step_bf16 import StepBf16
from step_gloo import StepGloo
from step_polled import StepPolled
from step_shm import StepShm
from step_threads import StepThreads
from step_two_hosts import StepTwoHosts
from tiny_step import TinyStep
from tiny_step_gloo import TinyStepGloo

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        StepGloo, StepShm, StepBf16, Step8Bit, StepThreads, StepTwoHosts,
        IterationRecipe, TinyStep, TinyStepGloo, PeakMemory, Scaling, Rules, CoordinatorScale,
        Consolidate, ConsolidateRpc, StepPolled, AddParamGroup,
        CheckpointWrite, CheckpointStall, CheckpointLoad,
    )
}


def _parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("benchmarks", nargs="*", metavar="BENCHMARK",
                        help="which (default: all): " + ", ".join(BENCHMARKS))
    parser.add_argument("--rounds", type=int, default=25, help="measured rounds (default: %(default)s)")
    parser.add_argument("--warm_up", type=int, default=3, help="rounds before those (default: %(default)s)")
    parser.add_argument("--parts", metavar="PATTERN", default="*",
                        help="parts of the benchmarks to run, by name: step_two_hosts_10gbit, or 'rules_adam*'\n"
                             "(default: all)")
    parser.add_argument("--only", metavar="NAMES", help="contestants to run, by name, with commas between")
    parser.add_argument("--setup_timeout_s", type=float, default=180, help="(default: %(default)s)")
    parser.add_argument("--round_timeout_s", type=float, default=60, help="(default: %(default)s)")
    parser.add_argument("--binaries", default=os.path.join(_ROOT, "bin"), help="where optshard's programs are")
    parser.add_argument("--python", default=os.path.join(_ROOT, ".venv", "bin", "python"),
                        help="the Python that has the peers")
    parser.add_argument("--out", default=os.path.join(_ROOT, "out"), help="directory of the results")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.benchmarks) - set(BENCHMARKS))
    if unknown:
        parser.error("no benchmark %s; there are %s" % (", ".join(unknown), ", ".join(BENCHMARKS)))
    if options.rounds < 1 or options.warm_up < 0:
        parser.error("--rounds must be at least 1 and --warm_up at least 0")
    return options


def _matching(parts, pattern, seen):
    """Those whose name matches; adds the names of all to `seen`."""
    for part in parts:
        seen.append(part.name)
        if fnmatch.fnmatchcase(part.name, pattern):
            yield part


def _with_contestants(parts, only):
    """Leaves the named contestants, and the parts that have one."""
    if only is None:
        return parts
    parts = list(parts)
    if not parts:
        return []
    names = only.split(",")
    known = [c.name for part in parts for c in part.contestants]
    unknown = sorted(set(names) - set(known))
    if unknown:
        sys.exit("no contestant %s; there are %s" % (", ".join(unknown), ", ".join(known)))
    for part in parts:
        part.contestants = [c for c in part.contestants if c.name in names]
    return [part for part in parts if part.contestants]


def _measure(name, options, seen):
    benchmark = BENCHMARKS[name](options.binaries, options.python, options.round_timeout_s)
    log_directory = os.path.join(options.out, "bench-logs")
    os.makedirs(log_directory, exist_ok=True)
    run_options = rounds.RunOptions(
        rounds=options.rounds,
        warm_up=options.warm_up,
        setup_timeout_s=options.setup_timeout_s,
        round_timeout_s=options.round_timeout_s,
        log_directory=log_directory,
    )
    entries = []
    try:
        parts = _matching(benchmark.parts(), options.parts, seen)
        for part in _with_contestants(parts, options.only):
            result = benchmark.run(part.contestants, run_options)
            entries.append(
                summary.entry(part.name, part.title, part.contestants, result, benchmark.unit,
                              benchmark.limits_add_up, benchmark.result_tolerance))
        return entries, benchmark.finish(entries, options.out) if entries else ""
    finally:
        benchmark.close()


def _write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def main(arguments):
    options = _parse(arguments)
    # As Ctrl-C: whoever waits for a contestant ends all of them on the way out.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    os.makedirs(options.out, exist_ok=True)
    about = machine.describe()
    entries, notes, seen = [], [], []
    for name in options.benchmarks or BENCHMARKS:
        made, note = _measure(name, options, seen)
        entries += made
        notes.append(note)
    if seen and not entries:
        sys.exit("no part matches %s; there are %s" % (options.parts, ", ".join(seen)))
    text = report.render(entries, about, notes)
    _write(os.path.join(options.out, "bench.json"), json.dumps(entries, indent=1) + "\n")
    _write(os.path.join(options.out, "bench.md"), text)
    print(text)
    return 1 if any(entry["problems"] for entry in entries) else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
