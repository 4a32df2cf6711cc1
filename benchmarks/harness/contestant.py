"""A contestant of a benchmark: a group of processes, one a rank, that runs a round on command.

Each process reads commands from stdin and answers with one JSON object a line on stdout, as
peers/round_protocol.py and round_protocol.h say.
"""

import dataclasses
import json
import os
import queue
import signal
import subprocess
import threading
import time


_SERVICE_TIMEOUT_S = 30


class ContestantError(Exception):
    """A contestant could not be started or did not answer; says which rank, and what it wrote."""


@dataclasses.dataclass(frozen=True)
class Service:
    """A program that a contestant's ranks use; it does not speak the round protocol.

    Attributes:
      command: its command line.
      ready_file: what it makes once it can be used.
    """

    command: list
    ready_file: str


@dataclasses.dataclass(frozen=True)
class Contestant:
    """What to start.

    Attributes:
      name: unique within a benchmark.
      title: for people.
      role: "ours", "peer" (the ratio is to the fastest of them), "reference" (shown, no more), or the
        name of a limit: the fastest contestant of each limit counts, the slowest of the limits binds.
      commands: the command line of each rank.
      environment: added to that of this process.
      same_result: what it answers to "check" is compared with the other contestants that say so.
      steps: of them there are in a round; what is reported is the time of one.
      services: what is started before the ranks, one after the other, and ended after them.
    """

    name: str
    title: str
    role: str
    commands: list
    environment: dict = dataclasses.field(default_factory=dict)
    same_result: bool = False
    steps: int = 1
    services: list = dataclasses.field(default_factory=list)


class _Process:
    """One process: its pipes, its log, and a thread that collects its lines."""

    def __init__(self, command, environment, log_path):
        self.log_path = log_path
        with open(log_path, "wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **environment},
                start_new_session=True,  # A process group of its own, to be ended as a whole.
            )
        self._lines = queue.Queue()
        threading.Thread(target=self._collect, daemon=True).start()

    def _collect(self):
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def say(self, command):
        try:
            self.process.stdin.write(command.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # The missing answer tells.

    def hear(self, deadline):
        """The next answer; raises ContestantError without the name of the contestant."""
        try:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise ContestantError("did not answer in time" + self._log_tail()) from None
        if line is None:
            code = self.process.wait(timeout=10)
            raise ContestantError("ended with exit status %d%s" % (code, self._log_tail()))
        try:
            answer = json.loads(line)
        except ValueError:
            raise ContestantError("wrote %r, which is not JSON" % line) from None
        if "error" in answer:
            raise ContestantError(answer["error"])
        return answer

    def wait_for_file(self, path, deadline):
        """Raises ContestantError without the name of the contestant."""
        while not os.path.exists(path):
            if self.process.poll() is not None:
                code = self.process.returncode
                raise ContestantError("ended with exit status %d%s" % (code, self._log_tail()))
            if time.monotonic() > deadline:
                raise ContestantError("was not ready in time" + self._log_tail())
            time.sleep(0.01)

    def _log_tail(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            lines = log.read().strip().splitlines()[-5:]
        return ": " + " | ".join(lines) if lines else ""

    def end(self, grace_s):
        """Ends the process and all it started: first by closing its input."""
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(timeout=10)


def _group_of(pid):
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


class Group:
    """The running processes of a contestant. Bound to one thread."""

    def __init__(self, contestant, log_directory):
        self.contestant = contestant
        self.detail = {}
        self._services = []
        self._ranks = []
        try:
            self._start_services(log_directory)
            for rank, command in enumerate(contestant.commands):
                log = os.path.join(log_directory, "%s.rank%d.log" % (contestant.name, rank))
                self._ranks.append(_Process(command, contestant.environment, log))
        except OSError as error:
            self.end(grace_s=0)
            raise ContestantError("%s: cannot start: %s" % (contestant.name, error)) from error
        except BaseException:
            self.end(grace_s=0)
            raise

    def _start_services(self, log_directory):
        deadline = time.monotonic() + _SERVICE_TIMEOUT_S
        for number, service in enumerate(self.contestant.services):
            log = os.path.join(log_directory, "%s.service%d.log" % (self.contestant.name, number))
            process = _Process(service.command, self.contestant.environment, log)
            self._services.append(process)
            try:
                process.wait_for_file(service.ready_file, deadline)
            except ContestantError as error:
                message = "%s, service %d: %s" % (self.contestant.name, number, error)
                raise ContestantError(message) from None

    def _hear_all(self, what, timeout_s):
        deadline = time.monotonic() + timeout_s
        answers = []
        for rank, process in enumerate(self._ranks):
            try:
                answers.append(process.hear(deadline))
            except ContestantError as error:
                message = "%s, rank %d, %s: %s" % (self.contestant.name, rank, what, error)
                raise ContestantError(message) from None
        return answers

    def wait_ready(self, timeout_s):
        self.detail = self._hear_all("setting up (%g s allowed)" % timeout_s, timeout_s)[0]

    def pids(self):
        """Its processes and all that they have started, as far as they live."""
        leaders = {each.process.pid for each in self._services + self._ranks}
        return sorted(pid for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
                      if _group_of(pid) in leaders)

    def services(self):
        """The processes of its services, by id."""
        return [each.process.pid for each in self._services]

    def run_round(self, timeout_s):
        """Runs one round; returns its milliseconds, first start to last end."""
        for process in self._ranks:
            process.say("go")
        answers = self._hear_all("in a round (%g s allowed)" % timeout_s, timeout_s)
        start = min(answer["start_ns"] for answer in answers)
        end = max(answer["end_ns"] for answer in answers)
        return (end - start) / 1e6

    def check(self, timeout_s):
        """What each rank's rounds have led to."""
        for process in self._ranks:
            process.say("check")
        return self._hear_all("checking (%g s allowed)" % timeout_s, timeout_s)

    def end(self, grace_s=5):
        for process in self._ranks + self._services[::-1]:
            process.end(grace_s)
        self._ranks = []
        self._services = []
