"""A memory cgroup of a test's own, for a process and its children."""

import os
import threading

_SAMPLE_S = 0.01


class NoMemoryCgroup(Exception):
    """Why none can be made here."""


# By version: where groups are made, the file of the limit, the keys of memory.stat that count what the processes
# have themselves (what is cached of files is given back when memory is short), and the file that counts who was
# killed.
_VERSIONS = (
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", ("total_shmem", "total_rss"), "memory.oom_control"),
    ("/sys/fs/cgroup", "memory.max", ("shmem", "anon"), "memory.events"),
)


class MemoryCgroup:
    """Use it by `with`; its processes must have ended at the end. `peak` is what they had at most, in bytes."""

    def __init__(self, name, limit):
        for root, limit_file, self._own, self._killed in _VERSIONS:
            self._path = os.path.join(root, name)
            if not os.path.exists(os.path.join(root, "cgroup.procs")):
                continue
            try:
                os.mkdir(self._path)
            except OSError as error:
                raise NoMemoryCgroup("cannot make %s: %s" % (self._path, error.strerror)) from error
            try:
                self._write(limit_file, limit)
            except OSError as error:
                os.rmdir(self._path)
                raise NoMemoryCgroup("%s has no memory controller" % root) from error
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
        os.rmdir(self._path)

    def enter(self):
        """Moves the calling process into it: between fork and exec."""
        self._write("cgroup.procs", os.getpid())

    def killed(self):
        """How many of its processes were killed for want of memory."""
        return self._numbers(self._killed)["oom_kill"]

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
