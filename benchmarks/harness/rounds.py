"""Runs contestants round by round in one run, so that what slows the machine slows all of them."""

import dataclasses
import sys
import time
from typing import Callable

from harness.contestant import ContestantError, Group

# After its last loop a contestant's OpenMP threads look for the next one for some milliseconds, and take
# a core of whoever runs then.
_PAUSE_S = 0.03


def milliseconds_of_step(group, timeout_s):
    return group.run_round(timeout_s) / group.contestant.steps


@dataclasses.dataclass
class RunOptions:
    """How long, and how patient.

    Attributes:
      rounds: measured rounds; each runs every contestant once.
      warm_up: rounds before those, not counted.
      setup_timeout_s: for a contestant's processes to be ready.
      round_timeout_s: for one round of one contestant, and for its check.
      log_directory: where the contestants' stderr goes.
      measure: runs one round of a group within a time-out, and returns its figure.
    """

    rounds: int
    warm_up: int
    setup_timeout_s: float
    round_timeout_s: float
    log_directory: str
    measure: Callable[[Group, float], float] = milliseconds_of_step


@dataclasses.dataclass
class RunResult:
    """What a run measured.

    Attributes:
      samples: contestant name -> figures by round, for each contestant that finished.
      checks: contestant name -> each rank's answer to "check".
      details: contestant name -> what it said when it was ready.
      failures: contestant name -> why it is not in the samples.
    """

    samples: dict
    checks: dict
    details: dict
    failures: dict


def _note(text):
    print(text, file=sys.stderr, flush=True)


def order_of_round(names, number):
    """Each round begins with another contestant and every second one runs backwards, so that none
    always runs after the same one."""
    shift = number % max(1, len(names))
    turned = names[shift:] + names[:shift]
    return turned[::-1] if number % 2 else turned


def _drop(groups, name, error, failures):
    failures[name] = str(error)
    groups.pop(name).end(grace_s=0)
    _note("FAILED %s" % error)


def _start(contestants, options, failures):
    groups = {}
    for contestant in contestants:
        try:
            groups[contestant.name] = Group(contestant, options.log_directory)
        except ContestantError as error:
            failures[contestant.name] = str(error)
            _note("FAILED %s" % error)
            continue
        try:
            # One after the other: a set-up that allocates gigabytes would disturb the next one's.
            groups[contestant.name].wait_ready(options.setup_timeout_s)
        except ContestantError as error:
            _drop(groups, contestant.name, error, failures)
        except BaseException:
            _end(groups)
            raise
    return groups


def _end(groups):
    for group in groups.values():
        group.end(grace_s=0)


def run(contestants, options):
    """Starts the contestants, runs all rounds, and ends every process, whatever happens."""
    failures = {}
    groups = _start(contestants, options, failures)
    samples = {name: [] for name in groups}
    checks = {}
    try:
        for number in range(options.warm_up + options.rounds):
            for name in order_of_round(list(groups), number):
                time.sleep(_PAUSE_S)
                try:
                    figure = options.measure(groups[name], options.round_timeout_s)
                except ContestantError as error:
                    _drop(groups, name, error, failures)
                    continue
                if number >= options.warm_up:
                    samples[name].append(figure)
            _note("round %d of %d" % (number + 1, options.warm_up + options.rounds))
        for name in list(groups):
            try:
                checks[name] = groups[name].check(options.round_timeout_s)
            except ContestantError as error:
                _drop(groups, name, error, failures)
        details = {name: group.detail for name, group in groups.items()}
    finally:
        _end(groups)
    finished = {name: samples[name] for name in samples if name not in failures}
    return RunResult(finished, checks, details, failures)


def merged(results):
    """Of several runs, with different contestants, one result."""
    return RunResult(*(
        {name: value for result in results for name, value in getattr(result, field.name).items()}
        for field in dataclasses.fields(RunResult)
    ))
