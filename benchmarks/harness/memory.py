"""How much memory a contestant holds, by the kernel's count."""

import resource
import threading

_PAUSE_S = 0.002  # Between two looks, at the least.


def _pss_bytes(pid):
    """Its proportional set size: a page that n processes have mapped counts as an nth of one."""
    try:
        with open("/proc/%d/smaps_rollup" % pid, encoding="ascii") as rollup:
            for line in rollup:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


def resident_bytes(pids):
    """What these processes have in memory, all together."""
    pages = 0
    for pid in pids:
        with open("/proc/%d/statm" % pid, encoding="ascii") as statm:
            pages += int(statm.read().split()[1])
    return pages * resource.getpagesize()


def pss_bytes(group):
    """The sum over all processes of a contestant."""
    return sum(map(_pss_bytes, group.pids()))


class _Peak:
    """Looks again and again, in a thread of its own, until it is left."""

    def __init__(self, group):
        self._group = group
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.bytes = 0

    def _look(self):
        self.bytes = max(self.bytes, pss_bytes(self._group))

    def _watch(self):
        while not self._stop.wait(_PAUSE_S):
            self._look()

    def __enter__(self):
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._stop.set()
        self._thread.join()
        self._look()


def peak_megabytes(group, timeout_s):
    """Runs one round; the most that was seen before, during and after it."""
    with _Peak(group) as peak:
        group.run_round(timeout_s)
    return peak.bytes / 1e6
