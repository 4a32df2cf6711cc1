"""Makes the outputs that Bazel keeps for all checkouts smaller, which Bazel 4 never does itself.

Usage: trim_build_cache.py [--most=GB] [--free=GB] [DIRECTORY]. Removes those that were not used for
the longest, until they take at most --most, and until the disk has --free; what it still lacks then is
the exit code 1. A build makes again what it misses. Other programs may build meanwhile.

DIRECTORY is ~/.cache/optshard/bazel by default (--disk_cache in .bazelrc). It has one file for each
output in cas/ and one for each action in ac/; nothing else is touched. The time of access says when
Bazel read a file last, to a day (relatime).
"""

import argparse
import os
import sys

GB = 10**9
DIRECTORY = "~/.cache/optshard/bazel"
PARTS = ("ac", "cas")


def gigabytes(text):
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError("%s: expected a number of GB of at least 0" % text)
    return number


def is_cache(directory):
    return all(os.path.isdir(os.path.join(directory, part)) for part in PARTS)


def entries(directory):
    """(time of the last use, bytes on the disk, path) of each file, the one that is longest unused first."""
    found = []
    for part in PARTS:
        for folder, _, names in os.walk(os.path.join(directory, part)):
            for name in names:
                path = os.path.join(folder, name)
                try:
                    status = os.lstat(path)
                except FileNotFoundError:  # Another program has removed it meanwhile.
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
        prog="trim_build_cache.py",
        description="Of the outputs that Bazel keeps for all checkouts, removes those that were not used for the "
        "longest.",
    )
    parser.add_argument("directory", nargs="?", default=os.path.expanduser(DIRECTORY),
                        help="Bazel's --disk_cache (default: %s)" % DIRECTORY)
    parser.add_argument("--most", type=gigabytes, default=30, metavar="GB",
                        help="how much may stay (default: 30)")
    parser.add_argument("--free", type=gigabytes, default=0, metavar="GB",
                        help="how much the disk is to have free afterwards (default: does not matter)")
    options = parser.parse_args(arguments)
    if not os.path.lexists(options.directory):
        print("%s: nothing is there" % options.directory)
        return 0
    if not is_cache(options.directory):
        parser.error(
            "%s is no disk cache of Bazel, which has ac/ and cas/: nothing was removed" % options.directory
        )
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
