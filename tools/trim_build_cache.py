"""Makes the outputs that Bazel keeps for all checkouts smaller, which Bazel 4 never does itself.

Usage: trim_build_cache.py [--most=GB] [--free=GB] [DIRECTORY]. Removes those that were not used for
the longest, until they take at most --most, and until the disk has --free; what it still lacks then is
the exit code 1. A build makes again what it misses. Other programs may build meanwhile.

DIRECTORY is ~/.cache/optshard/bazel by default (--disk_cache in .bazelrc): one file for each output
and for each action, named by a digest. One that Bazel reads shows it by its time of access, which
Linux keeps up to date to a day (relatime).
"""

import argparse
import os
import sys

GB = 10**9
DIRECTORY = "~/.cache/optshard/bazel"


def entries(directory):
    """(time of the last use, bytes on the disk, path) of each file, the one that is longest unused first."""
    found = []
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            try:
                status = os.lstat(path)
            except FileNotFoundError:  # A build has just given it its final name.
                continue
            used = max(status.st_atime, status.st_mtime)
            found.append((used, 512 * status.st_blocks, path))
    return sorted(found)


def free_bytes(directory):
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize


def trim(directory, most, free, free_bytes_of=free_bytes):
    """Removes entries; returns (bytes that were removed, bytes that are left, bytes that are still lacking)."""
    found = entries(directory)
    left = sum(size for _, size, _ in found)
    lacking = free - free_bytes_of(directory)
    removed = 0
    for _, size, path in found:
        if left <= most and lacking <= removed:
            break
        left -= size
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        removed += size
    return removed, left, max(0, lacking - removed)


def main(arguments):
    parser = argparse.ArgumentParser(
        prog="tools/trim_build_cache.py",
        description="Removes build outputs that were not used for the longest.",
    )
    parser.add_argument("directory", nargs="?", default=os.path.expanduser(DIRECTORY))
    parser.add_argument("--most", type=float, default=30, metavar="GB", help="that may stay (default: 30)")
    parser.add_argument("--free", type=float, default=0, metavar="GB", help="that the disk shall have")
    options = parser.parse_args(arguments)
    if not os.path.isdir(options.directory):
        print("%s: nothing is there" % options.directory)
        return 0
    removed, left, lacking = trim(options.directory, options.most * GB, options.free * GB)
    print("%s: %.1f GB removed, %.1f GB left" % (options.directory, removed / GB, left / GB))
    if lacking:
        print(
            "the disk lacks %.1f GB of the %g GB that are to be free: remove outputs of other checkouts "
            "(bazel clean --expunge there)" % (lacking / GB, options.free),
            file=sys.stderr,
        )
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
