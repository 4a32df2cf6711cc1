"""Runs clang-tidy over sources, but not over those that it has found nothing in as they are.

Usage: tidy.py [--within=SECONDS] FILE..., in the workspace root, which has compile_commands.json. Prints
findings, and exits with 1 where there are any. Files are looked at in their order; those that are not
reached within that time are named.

What was clean is remembered in ~/.cache/optshard/tidy, which may be deleted at any time: an empty
file for each source, named by a digest of all that clang-tidy's answer depends on. That is the
source and the headers of this repository that it includes, directly or not; its arguments;
.clang-tidy; and the installed Debian packages and Python wheels, for all other headers. A source
that changes while clang-tidy looks at it is not remembered.
"""

import argparse
import concurrent.futures
import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import time

TIDY = "clang-tidy-14"
OPTIONS = ("--quiet", "-p", ".")
KEPT_SECONDS = 30 * 24 * 3600
_QUOTED = re.compile(rb'^\s*(?:#\s*include|import(?:\s+public)?)\s*"([^"]+)"', re.MULTILINE)
# Differs between checkouts.
_OUTPUT_BASE = re.compile(r"/\S*/_bazel_[^/]+/[0-9a-f]{32}")


def source_of(path):
    """The file in the tree that an include names or is generated from; None for all others."""
    candidates = [path]
    if path.endswith(".pb.h"):
        candidates.append(re.sub(r"(\.grpc)?\.pb\.h$", ".proto", path))
    return next((each for each in candidates if os.path.isfile(each)), None)


class Digests:
    """Of sources with what they include. Files are read once."""

    def __init__(self, surroundings):
        self._surroundings = surroundings
        self._files = {}  # path: (digest of its content, what it includes)

    def _file(self, path):
        if path not in self._files:
            with open(path, "rb") as file:
                content = file.read()
            included = {source_of(name.decode()) for name in _QUOTED.findall(content)}
            self._files[path] = (hashlib.sha256(content).hexdigest(), included - {None})
        return self._files[path]

    def of(self, source, arguments):
        seen, left = {source}, [source]
        while left:
            new = self._file(left.pop())[1] - seen
            seen |= new
            left += new
        lines = [self._surroundings, *(_OUTPUT_BASE.sub("", each) for each in arguments)]
        lines += ["%s %s" % (path, self._file(path)[0]) for path in sorted(seen)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def surroundings():
    digest = hashlib.sha256(repr(OPTIONS).encode())
    for command in ([TIDY, "--version"], ["dpkg-query", "-W"]):
        digest.update(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    # The stamp says which wheels are installed.
    for path in (".clang-tidy", ".venv/.stamp"):
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def remove_old(directory):
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        with contextlib.suppress(FileNotFoundError):  # another one was faster
            if time.time() - os.path.getmtime(path) > KEPT_SECONDS:
                os.remove(path)


def is_clean(record):
    """Whether there is a record, which then stays for another while."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(record)
        return True
    return False


def check(source, record, record_now):
    """What clang-tidy says of the source; None where there is nothing to say. `record_now` returns what
    the record is afterwards."""
    done = subprocess.run(
        [TIDY, *OPTIONS, source],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
    )
    if done.returncode == 0 and not done.stdout.strip():
        if record_now() == record:
            with open(record, "w"):
                pass
        return None
    errors = [line for line in done.stderr.splitlines() if not line.endswith("generated.")]
    return done.stdout + "\n".join(errors)


def check_all(unknown, seconds):
    """What clang-tidy says of (source, record, record_now), one after the other."""
    end = time.monotonic() + seconds
    missed = []

    def check_in_time(source, record, record_now):
        if time.monotonic() < end:
            return check(source, record, record_now)
        missed.append(source)
        return None

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for said in pool.map(lambda each: check_in_time(*each), unknown):
            if said is not None:
                yield said
    for source in missed:
        print("NOT REACHED IN TIME %s" % source)
    if missed:
        print("NOT REACHED: %d of %d files" % (len(missed), len(unknown)))


def main():
    parser = argparse.ArgumentParser(prog="tidy.py", description="clang-tidy over sources that changed.")
    parser.add_argument(
        "--within",
        type=float,
        metavar="SECONDS",
        default=float("inf"),
        help="begin no file after that time, and name what was not reached",
    )
    parser.add_argument("sources", nargs="*", metavar="FILE", help="as in compile_commands.json")
    options = parser.parse_args()
    directory = os.path.expanduser("~/.cache/optshard/tidy")
    os.makedirs(directory, exist_ok=True)
    remove_old(directory)
    with open("compile_commands.json") as file:
        commands = {entry["file"]: entry["arguments"] for entry in json.load(file)}
    around = surroundings()
    digests = Digests(around)
    unknown = []
    sources = list(dict.fromkeys(options.sources))
    for source in sources:

        def record_of(digests, source=source):
            return os.path.join(directory, digests.of(source, commands[source]))

        record = record_of(digests)
        if not is_clean(record):
            unknown.append((source, record, lambda of=record_of: of(Digests(around))))
    print("clang-tidy: %d files, %d of them to look at" % (len(sources), len(unknown)))
    found = False
    for said in check_all(unknown, options.within):
        print(said, flush=True)
        found = True
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
