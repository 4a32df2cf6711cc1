"""One line about the machine that figures were taken on."""

import os
import platform


def _cpu_model():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            for line in info:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


def describe():
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return "%s, %d cores, %.0f GiB, Linux %s. Load before the run: %.2f." % (
        _cpu_model(),
        len(os.sched_getaffinity(0)),
        gib,
        platform.release(),
        os.getloadavg()[0],
    )
