"""Installs optshard's programs, libraries and users' headers under a prefix.

Usage: install.py [--sources=FOLDER] [--built=FOLDER] [--check] [--cuda] [PREFIX]

FOLDER of --sources is the root of the repository (default: where this script is), that of --built
what Bazel has made of it (default: bazel-bin there). DESTDIR of the environment, where it is set,
stands before PREFIX in the paths that are written. --check only looks whether files can be written.
--cuda: it was built with --config=cuda, and trainers link LibTorch for CUDA.
"""

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys

from help_page import pages_of

PROGRAMS = (
    "server/checkpoint/optshard-checkpoint",
    "server/coordinator/optshard-coordinator",
    "server/node/optshard-server",
    "tools/launcher/optshard-run",
)
# With their run paths: LibTorch may lie beside the one that needs it.
LIBRARIES = {"liboptshard_client.so": "$ORIGIN", "liboptshard_control.so": None}
# What a program includes. What these include is installed with them.
TRAINERS_HEADERS = (
    "client/checkpoint_directory.h",
    "client/foreign_state_dicts.h",
    "client/parameters_checksum.h",
    "client/sharded_optimizer.h",
    "client/state_dict.h",
    "client/state_dict_file.h",
    "client/status_error.h",
)
CONTROL_HEADERS = (
    "client/control/checkpoint_call_rpc.h",
    "client/control/optimizer_client_rpc.h",
)
# The libraries contain them, and their licences want to be said.
CONTAINED = {"grpc": "libgrpc++-dev", "protobuf": "libprotobuf-dev"}
# Debian 12's, whose version is that of its ABI.
ABSL_VERSION = "20220623"
# Of LibTorch, in the order in which they are linked.
LIBTORCH_LIBRARIES = ("torch_cpu", "c10")
LIBTORCH_FOR_CUDA = ("torch_cuda", "c10_cuda")

_OWN_INCLUDE = re.compile(r'(?m)^#include "((?:client|common|server)/[^"]+)"')


class InstallError(Exception):
    """Why nothing more can be installed; the text is for people."""


def headers_of(sources, first):
    """Paths of these headers and of those that they include, sorted."""
    found, left = set(), list(first)
    while left:
        path = left.pop()
        if path in found:
            continue
        found.add(path)
        with open(os.path.join(sources, path), encoding="utf-8") as header:
            left += _OWN_INCLUDE.findall(header.read())
    return sorted(found)


def as_installed(header):
    """A header whose includes of others are found in a program with a client/ or common/ of its own."""
    return _OWN_INCLUDE.sub(r'#include "optshard/\1"', header)


def values_of(sources, cuda=False):
    """What stands for @NAME@ in the files that end in .in."""

    def only(path, pattern):
        with open(os.path.join(sources, path), encoding="utf-8") as file:
            return re.search(pattern, file.read(), re.MULTILINE).group(1)

    libraries = (LIBTORCH_FOR_CUDA if cuda else ()) + LIBTORCH_LIBRARIES
    # Those of CUDA need many more, which the program finds by their own run paths.
    options = ["-Wl,--no-as-needed"] + (["-Wl,--allow-shlib-undefined"] if cuda else [])
    return {
        "VERSION": only("install/version.bzl", r'^OPTSHARD_VERSION = "([\d.]+)"$'),
        "LIBTORCH_VERSION": only("third_party/python/requirements.txt", r"^torch==([\d.]+) "),
        "LIBTORCH_LIBRARIES": " ".join(libraries),
        "LIBTORCH_LINK_OPTIONS": ";".join(option.replace("-Wl,", "LINKER:") for option in options),
        "LIBTORCH_FLAGS": " ".join(options + ["-l" + name for name in libraries]),
        "LIBTORCH_KIND": " for CUDA" if cuda else "",
        "ABSL_VERSION": ABSL_VERSION,
    }


def filled_in(text, values):
    return re.sub(r"@([A-Z_]+)@", lambda match: values[match.group(1)], text)


def check_prefix(prefix, root):
    """Raises InstallError where nothing can be written under the prefix."""
    if not os.path.isabs(prefix):
        raise InstallError("PREFIX is %r, and must begin with a slash, such as /usr/local" % prefix)
    nearest = root
    while not os.path.lexists(nearest):
        nearest = os.path.dirname(nearest)
    if not os.path.isdir(nearest):
        raise InstallError("%s cannot be made: %s is not a folder" % (root, nearest))
    # Those that files go to, too: a prefix may be one's own and its lib/ not.
    for folder in [nearest] + [os.path.join(root, name) for name in ("bin", "include", "lib", "share")]:
        if os.path.isdir(folder) and not os.access(folder, os.W_OK | os.X_OK):
            raise InstallError(
                "user %d cannot write to %s: install as root, or give a PREFIX of your own, such as"
                " ./run install $HOME/optshard" % (os.geteuid(), folder)
            )


class Installation:
    """Writes files below a root, each by a rename: programs that run keep their old ones."""

    def __init__(self, root):
        self._root = root
        self.sizes = {}  # path below the root: bytes

    def text(self, path, content):
        def write(to):
            with open(to, "w", encoding="utf-8") as file:
                file.write(content)

        self._place(path, 0o644, write)

    def copy(self, path, source):
        self._place(path, 0o644, lambda to: shutil.copyfile(source, to))

    def binary(self, path, source, mode, run_path=None):
        """A program or library without debug information and without paths of the build."""

        def write(to):
            shutil.copyfile(source, to)
            os.chmod(to, 0o755)
            _run("strip", "--strip-unneeded", to, package="binutils")
            if run_path:
                _run("chrpath", "--replace", run_path, to, package="chrpath")

        self._place(path, mode, write)

    def link(self, path, target):
        self._place(path, None, lambda to: os.symlink(target, to))

    def _place(self, path, mode, write):
        to = os.path.join(self._root, path)
        new = "%s.new.%d" % (to, os.getpid())
        try:
            os.makedirs(os.path.dirname(to), exist_ok=True)
            try:
                write(new)
                if mode is not None:
                    os.chmod(new, mode)
                os.replace(new, to)
            finally:
                if os.path.lexists(new):
                    os.unlink(new)
        except OSError as error:
            raise InstallError("%s cannot be written: %s" % (to, error.strerror)) from error
        self.sizes[path] = os.lstat(to).st_size


def _run(*command, package=None):
    """The output of a command, which is in this Debian package."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except OSError as error:
        advice = ": apt-get install %s" % package if package else ""
        raise InstallError("%s cannot be run: %s%s" % (command[0], error.strerror, advice)) from error
    except subprocess.CalledProcessError as error:
        raise InstallError("%s failed: %s" % (" ".join(command), error.stderr.strip())) from error


def install(sources, built, root, cuda):
    """Writes everything below `root`; returns the Installation."""
    values = values_of(sources, cuda)
    to = Installation(root)
    for program in PROGRAMS:
        name, file = os.path.basename(program), _built(built, program)
        to.binary("bin/" + name, file, 0o755)
        for path, page in pages_of(_run(file, "--help"), values["VERSION"]).items():
            to.text("share/" + path, page)
    for library, run_path in LIBRARIES.items():
        versioned = "%s.%s" % (library, values["VERSION"])
        to.binary("lib/" + versioned, _built(built, "install/" + library), 0o644, run_path)
        to.link("lib/" + library, versioned)
    for header in headers_of(sources, TRAINERS_HEADERS + CONTROL_HEADERS):
        with open(os.path.join(sources, header), encoding="utf-8") as file:
            to.text("include/optshard/" + header, as_installed(file.read()))
    for proto in _matching(sources, "proto/optshard/v1/*.proto"):
        to.copy("share/optshard/" + proto, os.path.join(sources, proto))
    for pattern, folder in [
        ("install/cmake/*.in", "lib/cmake/optshard/"),
        ("install/pkgconfig/*.in", "lib/pkgconfig/"),
    ]:
        for template in _matching(sources, pattern):
            with open(os.path.join(sources, template), encoding="utf-8") as file:
                name = os.path.basename(template)[: -len(".in")]
                to.text(folder + name, filled_in(file.read(), values))
    to.copy("share/doc/optshard/LICENSE", os.path.join(sources, "LICENSE"))
    for name, package in CONTAINED.items():
        to.copy("share/doc/optshard/LICENSE." + name, "/usr/share/doc/%s/copyright" % package)
    return to


def _matching(sources, pattern):
    found = sorted(glob.glob(pattern, root_dir=sources))
    if not found:
        raise InstallError("%s has no %s: is it the root of the repository?" % (sources, pattern))
    return found


def _built(built, path):
    file = os.path.join(built, path)
    if not os.path.isfile(file):
        raise InstallError("%s does not exist: ./run install builds it" % file)
    return file


def main(arguments):
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(prog="./run install", add_help=False, allow_abbrev=False)
    parser.add_argument("--sources", default=here)
    parser.add_argument("--built")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("prefix", nargs="?", default="/usr/local")
    options = parser.parse_args(arguments)
    root = os.environ.get("DESTDIR", "") + options.prefix
    try:
        check_prefix(options.prefix, root)
        if options.check:
            return
        built = options.built or os.path.join(options.sources, "bazel-bin")
        done = install(options.sources, built, root, options.cuda)
    except InstallError as error:
        sys.exit("./run install: %s" % error)
    print("%d files, %.1f MB in %s" % (len(done.sizes), sum(done.sizes.values()) / 1e6, root))


if __name__ == "__main__":
    main(sys.argv[1:])
