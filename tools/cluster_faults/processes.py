"""The processes of a job: each one's log, what a trainer has said in it, and how they are killed."""

import json
import os
import signal
import subprocess
import time

from failures import Hung

# Between two of its servers a keeper has none.
_SERVER_S = 5
# Then its keeper pauses for longer than a second, by and by for longer than a step may wait: for 0, 0.1, 0.2, 0.4,
# 0.8, 1.6 s and so on (server/node/restart_pauses.h).
_MOST_DEATHS = 5


class Process:
    """A program on a host. What it writes goes to `log`."""

    def __init__(self, hosts, host, command, log):
        self.host = host
        self.log = log
        with open(log, "ab") as output:
            self._process = subprocess.Popen(hosts.on(host, command), stdin=subprocess.DEVNULL,
                                             stdout=output, stderr=subprocess.STDOUT,
                                             start_new_session=True)

    @property
    def pid(self):
        return self._process.pid

    def ended(self):
        return self._process.poll() is not None

    def wait(self, seconds):
        return self._process.wait(seconds)

    def terminate(self):
        self._process.terminate()

    def kill(self):
        self._process.kill()
        self._process.wait()


class Server(Process):
    """A shard server: the process itself is the keeper, and the server its child."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._deaths = 0

    def is_worn(self):
        """Its keeper would not start another one soon, since so many have been killed."""
        return self._deaths >= _MOST_DEATHS

    def _children(self):
        try:
            with open("/proc/%d/task/%d/children" % (self.pid, self.pid), encoding="ascii") as children:
                return [int(child) for child in children.read().split()]
        except OSError:
            return []

    def _kill_children(self):
        """How many there were."""
        killed = 0
        for child in self._children():
            try:
                if not _is_zombie(child):
                    os.kill(child, signal.SIGKILL)
                    killed += 1
            except (ProcessLookupError, FileNotFoundError):
                pass
        return killed

    def kill_server(self):
        """Its keeper starts another one. Hung: there is none that could be killed."""
        deadline = time.monotonic() + _SERVER_S
        while not self._kill_children():
            if time.monotonic() >= deadline:
                raise Hung("host %d has had no shard server for %g s" % (self.host, _SERVER_S))
            time.sleep(0.01)
        self._deaths += 1

    def kill(self):
        # Stopped, it cannot start another one between the two deaths.
        self._process.send_signal(signal.SIGSTOP)
        self._kill_children()
        super().kill()


def _is_zombie(pid):
    with open("/proc/%d/stat" % pid, "rb") as stat:
        # After the name, which is in parentheses and may have some itself.
        return stat.read().rpartition(b")")[2].split()[0] == b"Z"


class Trainer(Process):
    """What a rank's trainer has said so far, as test-trainer tells it, compared with `expected`: the
    checksum of the parameters after each step, or None while that is still to be learnt."""

    def __init__(self, hosts, host, rank, command, log, expected):
        super().__init__(hosts, host, command, log)
        self.rank = rank
        self.step = 0        # the last one that is in the parameters
        self.highest = 0     # the highest one that was, since the last load
        self.stepped = 0     # how many steps it has made itself
        self.joined = None   # the last finished step that it was told when it joined
        self.error = None    # the event of that name, the last thing that it says
        self.torn = None     # the last event of that name
        self.loaded = None   # step of the checkpoint that it has gone on from
        self.done = False
        self.wrong = None    # in words, the first thing that is not as in an undisturbed run
        self.checksums = {}  # by step
        self._is_torn = False
        self._expected = expected
        self._said = open(log, "rb")
        self._rest = b""

    def read(self):
        """What it has said since."""
        lines = (self._rest + self._said.read()).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"{"):
                self._take(json.loads(line))

    def close(self):
        self._said.close()

    def _take(self, event):
        kind = event["event"]
        if kind == "joined":
            self.step = self.joined = event["finished_step"]
            if self.step > 0:
                self._compare(event, self.step)
        elif kind == "step":
            self.step = event["step"]
            self.stepped += 1
            self.checksums[self.step] = event["checksum"]
            self._compare(event, self.step)
        elif kind == "stepping" and event["step"] > 1:
            self._compare(event, event["step"] - 1)
        elif kind == "error":
            self.error = event
            # Others only say that the step is to be called again: which one the parameters are of is not known.
            says_unchanged = event["code"] == "UNAVAILABLE" and not event["owner_away"]
            if says_unchanged and self.step > 0 and not self._is_torn:
                self._compare(event, self.step)
        elif kind == "torn":
            self.torn = event
            self._is_torn = True
        elif kind == "loaded":
            self.step = self.loaded = self.highest = event["step"]
            self._is_torn = False
        elif kind == "done":
            self.done = True
            self._compare(event, self.step)
        self.highest = max(self.highest, self.step)

    def _compare(self, event, step):
        if self._expected is None or self.wrong:
            return
        if event["checksum"] != self._expected.get(step):
            self.wrong = "rank %d has other parameters after step %d (event %s) than undisturbed" % (
                self.rank, step, event["event"])
