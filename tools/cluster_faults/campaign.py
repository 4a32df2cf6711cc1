#!/usr/bin/env python3
"""Trains on several hosts (network namespaces), disturbs the training, and checks what becomes of it."""

import argparse
import dataclasses
import math
import os
import shutil
import signal
import sys
import time
import traceback

from failures import Broken, Hung
from faults import FROM_CHECKPOINT, KINDS, NEW_JOB, SAME_BITS, SUCCESSORS, schedule
from hosts import Hosts
from job import Job
from rounds import Round

_FAILED = "FAILED"
_COLUMNS = (SAME_BITS, FROM_CHECKPOINT, SUCCESSORS, NEW_JOB, _FAILED)


@dataclasses.dataclass(frozen=True)
class Limits:
    """Of the jobs, and of this tool's patience."""
    lease_s: float
    step_timeout_s: float
    join_timeout_s: float
    elements: int
    checkpoint_every: int
    restart_s: float = 1.0  # what was killed is started again within it

    @property
    def named_s(self):
        # docs/errors.md: step() waits for step_timeout and at most a second more. The rest is for a
        # machine that does something else.
        return self.step_timeout_s + 1 + 1.5

    @property
    def hung_s(self):
        return 2 * self.step_timeout_s + self.join_timeout_s + 20


def _parse(arguments):
    parser = argparse.ArgumentParser(prog="./run cluster-faults", description=__doc__ + """
        A coordinator, a shard server a host and their trainers run a small job; what a rank's parameters are after
        each step is compared with an undisturbed run. After each fault the job must go on with the same bits, or
        all ranks must be told in time whom they have lost. Anything else has FAILED: the logs are kept, and the
        exit code is 1. Wants root.""", epilog="kinds of faults: " + "; ".join(
            "%s: %s" % (kind.name, kind.what) for kind in KINDS.values()))
    parser.add_argument("--faults", type=int, default=20, help="how many [%(default)s]")
    parser.add_argument("--hosts", type=int, default=4, help="how many; host 0 has two ranks and the "
                        "coordinator, each other one a rank [%(default)s]")
    parser.add_argument("--seed", type=int, default=1, help="of kinds, victims and moments [%(default)s]")
    parser.add_argument("--kinds", default=",".join(KINDS), help="only these, with commas [all]")
    parser.add_argument("--steps", type=int, default=600, help="of a job [%(default)s]")
    parser.add_argument("--elements", type=int, default=100000,
                        help="of the job's largest parameter [%(default)s]")
    parser.add_argument("--lease", type=float, default=1.0, help="the coordinator's, in s [%(default)s]")
    parser.add_argument("--step-timeout", type=float, default=5.0,
                        help="in s; at least four leases and a second [%(default)s]")
    parser.add_argument("--join-timeout", type=float, default=6.0, help="in s [%(default)s]")
    parser.add_argument("--checkpoint-every", type=int, default=20, help="steps [%(default)s]")
    parser.add_argument("--out", default="out/cluster_faults", help="for logs of rounds that have failed "
                        "[%(default)s]")
    parser.add_argument("--coordinator-binary", dest="coordinator", default="bin/optshard-coordinator")
    parser.add_argument("--server-binary", dest="server", default="bin/optshard-server")
    parser.add_argument("--trainer-binary", dest="trainer", default="bin/test-trainer")
    options = parser.parse_args(arguments)
    options.kinds = options.kinds.split(",")
    for kind in options.kinds:
        if kind not in KINDS:
            parser.error("--kinds: there is no kind %s, only %s" % (kind, ", ".join(KINDS)))
    if options.faults < 1 or not 2 <= options.hosts <= 100:
        parser.error("expected at least one of --faults, and --hosts from 2 to 100")
    # Otherwise a link that is cut for two leases may be told to the trainers: TCP takes as long again to repeat
    # what was lost, and then the job forms anew.
    if options.step_timeout < 4 * options.lease + 1:
        parser.error("--step-timeout: %g s, expected at least four leases and a second, %g s"
                     % (options.step_timeout, 4 * options.lease + 1))
    if os.geteuid() != 0:
        parser.error("only root can make network namespaces; run it with sudo")
    for program in ("ip", "tc", "setpriv", options.coordinator, options.server, options.trainer):
        if shutil.which(program) is None:
            parser.error("there is no %s" % program)
    return options


class Campaign:
    def __init__(self, options, hosts):
        self._options = options
        self._hosts = hosts
        self._limits = Limits(options.lease, options.step_timeout, options.join_timeout, options.elements,
                              options.checkpoint_every)
        self._jobs = 0
        self._runs = 0  # from step 0 to the end: several jobs, where one has lost its state
        self._job = None
        self._expected = None  # checksums by step
        self._steps_per_s = 0  # of a run that nothing disturbs
        self.results = []      # (fault, Result) or (fault, None)

    def run(self):
        try:
            self._expected = self._undisturbed()
        except (Broken, Hung) as failure:
            self._tell_failure("before the first fault", failure)
            raise
        faults = schedule(self._options.seed, self._options.faults, self._options.kinds, self._limits,
                          self._options.hosts)
        for number, fault in enumerate(faults, 1):
            began = time.monotonic()
            result = self._round(number, fault)
            self.results.append((fault, result))
            print("%3d %s: %s, %.1f s" % (number, fault, result.outcome if result else _FAILED,
                                          time.monotonic() - began), flush=True)
        self._finish(len(faults))

    def close(self):
        if self._job is not None:
            self._job.close()

    def _folder(self):
        return os.path.join(self._options.out, "seed%d-job%d" % (self._options.seed, self._jobs))

    def _checkpoints(self):
        return os.path.join(self._options.out, "seed%d-checkpoints%d" % (self._options.seed, self._runs))

    def _start(self, anew=True):
        """Starts a job; `anew`: from step 0, otherwise from the newest checkpoint of the one before."""
        self._jobs += 1
        if anew:
            self._runs += 1
            shutil.rmtree(self._checkpoints(), ignore_errors=True)
        self._job = Job(self._hosts, self._options, self._limits, self._folder(), self._checkpoints(),
                        self._options.steps, self._expected)
        self._job.start()

    def _close_job(self):
        self._job.close()
        self._job = None
        shutil.rmtree(self._folder())

    def _finish_job(self):
        self._job.finish()
        self._close_job()
        shutil.rmtree(self._checkpoints())

    def _undisturbed(self):
        """The checksums of the parameters that all ranks have after each step."""
        began = time.monotonic()
        self._start()
        started, first = time.monotonic(), self._job.last_step()
        self._job.finish()
        self._steps_per_s = (self._options.steps - first) / (time.monotonic() - started)
        checksums = [trainer.checksums for trainer in self._job.trainers]
        if len(checksums[0]) != self._options.steps or any(each != checksums[0] for each in checksums):
            raise Broken("undisturbed, the ranks do not have the same parameters after each step")
        self._finish_job()
        print("undisturbed: %d steps, %.1f s, parameters %s at the end" % (
            self._options.steps, time.monotonic() - began, checksums[0][self._options.steps]), flush=True)
        return checksums[0]

    def _round(self, number, fault):
        """None: it has failed."""
        try:
            if self._job is not None and self._is_over(fault):
                self._finish_job()
            if self._job is None:
                self._start()
            result = Round(self._job, fault, self._limits).run()
            if result.outcome == NEW_JOB:
                self._mend()
                self._close_job()
                self._start(anew=False)
        except (Broken, Hung) as failure:
            self._tell_failure("fault %d, %s" % (number, fault), failure)
            return None
        return result

    def _is_over(self, fault):
        """Whether another job is to have the fault."""
        return (self._job.servers[fault.host].is_worn() or
                self._job.last_step() + self._steps_for(fault) > self._options.steps)

    def _steps_for(self, fault):
        """How many steps a round may take: those before the fault, those while it lasts, and some more."""
        steps_for_s = fault.after_s + (0 if fault.holds_up_steps else fault.lasts_s)
        return fault.after_steps + math.ceil(1.5 * self._steps_per_s * steps_for_s) + 40

    def _finish(self, number):
        try:
            if self._job is not None:
                self._finish_job()
        except (Broken, Hung) as failure:
            self._tell_failure("after fault %d" % number, failure)
            self.results[-1] = (self.results[-1][0], None)

    def _tell_failure(self, when, failure):
        print("FAILED, seed %d, %s: %s" % (self._options.seed, when, failure), flush=True)
        self._mend()
        if self._job is not None:
            print(self._job.describe(), flush=True)
            self._job.close()
            self._job = None
        print("logs: %s" % self._folder(), flush=True)

    def _mend(self):
        for host in range(self._options.hosts):
            self._hosts.mend(host)


def _longest(results, field):
    seconds = [getattr(result, field) for result in results if result and getattr(result, field) is not None]
    return "%.1f s" % max(seconds) if seconds else "-"


def _table(results):
    rows = [("fault", "faults", *_COLUMNS, "longest until named", "longest to go on")]
    names = [name for name in KINDS if any(fault.kind.name == name for fault, _ in results)]
    for name in [*names, None]:
        of_kind = [result for fault, result in results if name in (fault.kind.name, None)]
        outcomes = [result.outcome if result else _FAILED for result in of_kind]
        rows.append((name or "all", str(len(of_kind)), *(str(outcomes.count(each)) for each in _COLUMNS),
                     _longest(of_kind, "named_s"), _longest(of_kind, "went_on_s")))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    # The first column is text.
    rows.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(others, widths[1:])]
        lines.append("| %s |" % " | ".join(cells))
    return "\n".join(lines)


def _interrupted(number, _frame):
    sys.exit(128 + number)


def main():
    # Where tc is; not everybody has it.
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    options = _parse(sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupted)
    # A proxy of the environment is not for them.
    os.environ["no_grpc_proxy"] = ",".join(Hosts.addresses(options.hosts))
    began = time.monotonic()
    hosts = Hosts("optshard-%d" % os.getpid(), options.hosts)
    try:
        campaign = Campaign(options, hosts)
        try:
            campaign.run()
        except (Broken, Hung):
            traceback.print_exc()
            return 1
        finally:
            campaign.close()
    finally:
        hosts.close()
    print("\nseed %d, %d hosts, %.0f s\n" % (options.seed, options.hosts, time.monotonic() - began))
    print(_table(campaign.results))
    return 1 if any(result is None for _, result in campaign.results) else 0


if __name__ == "__main__":
    sys.exit(main())
