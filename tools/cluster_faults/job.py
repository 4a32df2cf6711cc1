"""One training job on several hosts: a coordinator on the first, a shard server on each, and trainers
that are attached to it. The first host has two ranks, each other one."""

import os
import shutil
import subprocess
import tempfile
import time

from failures import Broken, Hung
from processes import Process, Server, Trainer

_PORT = 4700
_START_S = 30
_GRPC_CLI = ".cache/grpc_cli/grpc_cli"


class Job:
    """`programs` has the paths of coordinator, server and trainer; logs go to `folder`. All hosts see both
    folders. Nothing runs before `start`. Whoever has made a job closes it, also where `start` has failed."""

    def __init__(self, hosts, programs, limits, folder, checkpoints, steps, expected, clock=time):
        self.hosts = hosts
        self.steps = steps
        self.world_size = hosts.count + 1
        self.trainers = [None] * self.world_size  # by rank
        self._programs = programs
        self._limits = limits
        self._folder = folder
        self._checkpoints = os.path.abspath(checkpoints)
        self._expected = expected
        self._clock = clock
        self._lives = [0] * self.world_size
        self._sockets = None  # a folder
        self._old_trainers = []
        self.coordinator = None
        self.servers = []

    def ranks_of(self, host):
        return [0, 1] if host == 0 else [host + 1]

    def host_of(self, rank):
        return max(0, rank - 1)

    def start(self):
        """Starts all of it, from the newest checkpoint if there is one, and returns after the first step."""
        shutil.rmtree(self._folder, ignore_errors=True)
        os.makedirs(self._folder)
        os.makedirs(self._checkpoints, exist_ok=True)
        # Short, since the path of a socket has to be.
        self._sockets = tempfile.TemporaryDirectory(prefix="faults-")
        newest = self.newest_checkpoint()
        self.start_coordinator()
        for host in range(self.hosts.count):
            self._start_server(host)
        loading = ["--load_checkpoint=" + self._checkpoints] if newest is not None else []
        for rank in range(self.world_size):
            self.start_trainer(rank, loading)
        self.wait_until(lambda: all(trainer.step > (trainer.loaded or 0) for trainer in self.trainers),
                        _START_S, "the first step of all ranks")
        loaded = [trainer.loaded for trainer in self.trainers]
        if loaded != [newest] * self.world_size:
            raise Broken("by rank, the job goes on from the checkpoints of steps %s; the newest one is of step %s"
                         % (loaded, newest))

    def newest_checkpoint(self):
        """The step of the newest one that is committed, or None."""
        # A name is step-000000000020, or step-000000000020.1 for a second attempt.
        return max((int(name[len("step-"):].split(".")[0]) for name in os.listdir(self._checkpoints)
                    if os.path.exists(os.path.join(self._checkpoints, name, "manifest.json"))), default=None)

    def has_checkpoint(self):
        return self.newest_checkpoint() is not None

    def start_coordinator(self):
        self.coordinator = Process(self.hosts, 0, [
            self._programs.coordinator, "--job=test", "--world-size=%d" % self.world_size,
            "--listen=%s:%d" % (self.hosts.address(0), _PORT), "--lease=%gs" % self._limits.lease_s,
            "--join-timeout=%gs" % self._limits.join_timeout_s, "--checkpoint-dir=" + self._checkpoints,
            "--checkpoint-every=%d" % self._limits.checkpoint_every, "--keep-last=3"],
            self._log("coordinator"))

    def _start_server(self, host):
        self.servers.append(Server(self.hosts, host, [
            self._programs.server, "--job=test",
            "--node-ranks=" + ",".join(str(rank) for rank in self.ranks_of(host)),
            "--coordinator=%s:%d" % (self.hosts.address(0), _PORT), "--socket=" + self._socket(host),
            "--interface=eth0"],
            self._log("server%d" % host)))

    def start_trainer(self, rank, more=()):
        """The rank's first one, or the successor of one that has ended."""
        if self.trainers[rank] is not None:
            # Nobody else reads what it said last.
            self.trainers[rank].read()
            self._old_trainers.append(self.trainers[rank])
        host = self.host_of(rank)
        self._lives[rank] += 1
        self.trainers[rank] = Trainer(self.hosts, host, rank, [
            self._programs.trainer, "--rank=%d" % rank, "--world_size=%d" % self.world_size,
            "--coordinator=%s:%d" % (self.hosts.address(0), _PORT),
            "--attach=unix:" + self._socket(host), "--node=host%d" % host, "--policy=balanced",
            "--wait_for_trainers", "--steps=%d" % self.steps, "--elements=%d" % self._limits.elements,
            "--step_timeout_ms=%d" % (1000 * self._limits.step_timeout_s),
            "--join_timeout_ms=%d" % (1000 * self._limits.join_timeout_s),
            "--load_torn=" + self._checkpoints, *more],
            self._log("rank%d.%d" % (rank, self._lives[rank])), self._expected)

    def _log(self, name):
        return os.path.join(self._folder, name + ".log")

    def _socket(self, host):
        return os.path.join(self._sockets.name, str(host))

    def read(self):
        for trainer in self.trainers:
            trainer.read()

    def wrong(self):
        """What is not as in an undisturbed run, in words; None where all is."""
        found = [trainer.wrong for trainer in [*self._old_trainers, *self.trainers] if trainer.wrong]
        return found[0] if found else None

    def is_known_to_coordinator(self):
        """Not before the ranks have joined it: one that was started anew tells nobody whom they have lost."""
        with open(self.coordinator.log, encoding="utf-8") as log:
            said = log.read()
        return said.rfind(" active: ") > said.rfind(" listening at ")

    def last_step(self):
        return max(trainer.step for trainer in self.trainers)

    def highest_step(self):
        """The highest one that any trainer has finished, also one that has ended."""
        return max(trainer.highest for trainer in [*self._old_trainers, *self.trainers])

    def step_before(self, rank):
        """The highest one that the rank's ended trainers have finished."""
        return max((trainer.highest for trainer in self._old_trainers if trainer.rank == rank), default=0)

    def wait_until(self, holds, seconds, what):
        """While nothing disturbs the job, so that no rank may fail."""
        deadline = self._clock.monotonic() + seconds
        while True:
            self.read()
            self.check_bits()
            if holds():
                return
            for trainer in self.trainers:
                told = trainer.error or trainer.torn
                if told:
                    raise Hung("rank %d failed while nothing disturbed it: %s"
                               % (trainer.rank, told["message"]))
            if self._clock.monotonic() >= deadline:
                raise Hung("waited %g s for %s" % (seconds, what))
            self._clock.sleep(0.01)

    def check_bits(self):
        """Of all that has been read so far."""
        if self.wrong():
            raise Broken(self.wrong())

    def finish(self):
        """Trains to the end, where all ranks leave in good order."""
        self.wait_until(lambda: all(trainer.done for trainer in self.trainers), 10 * _START_S,
                        "the end of all ranks")
        for trainer in self.trainers:
            try:
                status = trainer.wait(_START_S)
            except subprocess.TimeoutExpired as error:
                raise Hung("rank %d does not leave" % trainer.rank) from error
            if status != 0:
                raise Hung("rank %d was done and ended with status %d" % (trainer.rank, status))
        self.read()
        self.check_bits()

    def describe(self):
        """Who waits for whom, for people."""
        lines = []
        for trainer in self._running_trainers():
            lines.append("rank %d on host %d, process %d%s: step %d, %s" % (
                trainer.rank, trainer.host, trainer.pid, " (ended)" if trainer.ended() else "",
                trainer.step, trainer.error or "no error"))
        lines += ["server of host %d: process %d%s" % (
            server.host, server.pid, " (ended)" if server.ended() else "") for server in self.servers]
        return "\n".join(lines) + "\n" + self._ask_coordinator()

    def _ask_coordinator(self):
        if not os.path.exists(_GRPC_CLI):
            return "no %s, which would ask the coordinator" % _GRPC_CLI
        try:
            asked = subprocess.run(
                self.hosts.on(0, [_GRPC_CLI, "call", "%s:%d" % (self.hosts.address(0), _PORT),
                                  "optshard.v1.JobInspection.DescribeJob", ""]),
                capture_output=True, text=True, timeout=10, check=False)
        except subprocess.TimeoutExpired:
            return "the coordinator does not say in 10 s how the job is"
        told = [line.strip() for line in asked.stdout.splitlines() if "summary" in line]
        return "\n".join(told or [asked.stderr.strip()])

    def close(self):
        """Kills all of it."""
        trainers = self._running_trainers()
        for process in [*trainers, *self.servers, self.coordinator]:
            if process is not None:
                process.kill()
        for trainer in [*self._old_trainers, *trainers]:
            trainer.close()
        if self._sockets is not None:
            self._sockets.cleanup()

    def _running_trainers(self):
        """Without ranks that have not been started, since `start` has failed before."""
        return [trainer for trainer in self.trainers if trainer is not None]
