"""A memory cgroup of a test's own, for a process and its children."""

import os
import signal
import threading
import time

_SAMPLE_S = 0.01
_PATIENCE_S = 60


class NoMemoryCgroup(Exception):
    """Why none can be made here."""


# By version: where groups are made, the file of the limit, that of the limit with swap and what it is then, the
# keys of memory.stat that count what the processes have themselves (what is cached of files is given back when
# memory is short), and the file that counts who was killed.
_VERSIONS = (
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes",
     ("memory.memsw.limit_in_bytes", lambda limit: limit), ("total_shmem", "total_rss"),
     "memory.oom_control"),
    ("/sys/fs/cgroup", "memory.max", ("memory.swap.max", lambda limit: 0), ("shmem", "anon"), "memory.events"),
)


class MemoryCgroup:
    """Use it by `with`: what is left in it at the end is killed. `peak` is what they had at most, in bytes."""

    def __init__(self, name, limit):
        for root, limit_file, (swap_file, swap_limit), self._own, self._killed in _VERSIONS:
            if not os.path.exists(os.path.join(root, "cgroup.procs")):
                continue
            self._path = os.path.join(root, name)
            try:
                os.mkdir(self._path)
            except FileExistsError:
                raise
            except OSError as error:
                raise NoMemoryCgroup("cannot make %s: %s" % (self._path, error.strerror)) from error
            if not os.path.exists(os.path.join(self._path, limit_file)):
                os.rmdir(self._path)
                raise NoMemoryCgroup("%s has no memory controller" % root)
            self._write(limit_file, limit)
            if os.path.exists(os.path.join(self._path, swap_file)):
                self._write(swap_file, swap_limit(limit))
            break
        else:
            raise NoMemoryCgroup("there are no cgroups")
        self.peak = 0
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample)

    def __enter__(self):
        self._sampler.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._sampler.join()
        deadline = time.monotonic() + _PATIENCE_S
        while self._processes() and time.monotonic() < deadline:
            for process in self._processes():
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(_SAMPLE_S)
        if self._processes():
            raise AssertionError("processes %s do not end in %d s" % (self._processes(), _PATIENCE_S))
        os.rmdir(self._path)

    def within(self, *command):
        """The command line that runs `command` in it."""
        return ["bash", "-c", 'echo $$ >"$0" && exec "$@"', os.path.join(self._path, "cgroup.procs"),
                *command]

    def killed(self):
        """How many of its processes were killed for want of memory."""
        return self._numbers(self._killed)["oom_kill"]

    def _processes(self):
        with open(os.path.join(self._path, "cgroup.procs"), encoding="ascii") as file:
            return [int(process) for process in file]

    def _write(self, name, value):
        with open(os.path.join(self._path, name), "w", encoding="ascii") as file:
            file.write("%d" % value)

    def _numbers(self, name):
        with open(os.path.join(self._path, name), encoding="ascii") as file:
            return {key: int(value) for key, value in map(str.split, file)}

    def _sample(self):
        while not self._ended.wait(_SAMPLE_S):
            stat = self._numbers("memory.stat")
            self.peak = max(self.peak, sum(stat[key] for key in self._own))
