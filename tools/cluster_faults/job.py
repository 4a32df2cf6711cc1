"""One training job on several hosts: a coordinator on the first, a shard server on each, and trainers
that are attached to it. The first host has two ranks, each other one."""

import os
import shutil
import subprocess
import tempfile
import time

from processes import Process, Server, Trainer

_PORT = 4700
_START_S = 30
_GRPC_CLI = ".cache/grpc_cli/grpc_cli"


class Hung(Exception):
    """Somebody did not come to an end in time."""


class Job:
    """Starts all of it, from the newest checkpoint in `checkpoints` if there is one. `programs` has the paths of
    coordinator, server and trainer; logs go to `folder`. All hosts see both folders."""

    def __init__(self, hosts, programs, limits, folder, checkpoints, steps, expected):
        self.hosts = hosts
        self.steps = steps
        self.world_size = hosts.count + 1
        self.trainers = [None] * self.world_size  # by rank
        self._programs = programs
        self._limits = limits
        self._folder = folder
        self._checkpoints = os.path.abspath(checkpoints)
        self._expected = expected
        self._lives = [0] * self.world_size
        # Short, since the path of a socket has to be.
        self._sockets = tempfile.TemporaryDirectory(prefix="faults-")
        self._old_trainers = []
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        os.makedirs(checkpoints, exist_ok=True)
        self.coordinator = None
        self.servers = []
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def ranks_of(self, host):
        return [0, 1] if host == 0 else [host + 1]

    def host_of(self, rank):
        return max(0, rank - 1)

    def _start(self):
        self.start_coordinator()
        for host in range(self.hosts.count):
            self._start_server(host)
        loading = ["--load_checkpoint=" + self._checkpoints] if self.has_checkpoint() else []
        for rank in range(self.world_size):
            self.start_trainer(rank, loading)
        self.wait_until(lambda: all(trainer.step > (trainer.loaded or 0) for trainer in self.trainers),
                        _START_S, "the first step of all ranks")

    def has_checkpoint(self):
        """Whether one is committed."""
        return any(os.path.exists(os.path.join(self._checkpoints, name, "manifest.json"))
                   for name in os.listdir(self._checkpoints))

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
            "--interface=eth0", "--owner-listen=%s:0" % self.hosts.address(host)],
            self._log("server%d" % host)))

    def start_trainer(self, rank, more=()):
        """The rank's first one, or the successor of one that has ended."""
        if self.trainers[rank] is not None:
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

    def wait_until(self, holds, seconds, what):
        """While nothing disturbs the job, so that no rank may fail."""
        deadline = time.monotonic() + seconds
        while True:
            self.read()
            if holds():
                return
            for trainer in self.trainers:
                told = trainer.error or trainer.torn
                if told:
                    raise Hung("rank %d failed while nothing disturbed it: %s"
                               % (trainer.rank, told["message"]))
            if time.monotonic() >= deadline:
                raise Hung("waited %g s for %s" % (seconds, what))
            time.sleep(0.01)

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

    def describe(self):
        """Who waits for whom, for people."""
        lines = []
        for trainer in self.trainers:
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
        trainers = [trainer for trainer in self.trainers if trainer is not None]
        for process in [*trainers, *self.servers, self.coordinator]:
            if process is not None:
                process.kill()
        for trainer in [*self._old_trainers, *trainers]:
            trainer.close()
        self._sockets.cleanup()
