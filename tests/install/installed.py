"""What tests of the installation share: installing it, and where LibTorch is."""

import os
import subprocess
import sys
import tempfile

# From the root of the runfiles, which hold the sources and what Bazel has built at the same paths.
INSTALL = [sys.executable, "-B", os.path.abspath("install/install.py"), "--sources=.", "--built=."]
# The wheel that `./run setup` has installed beside WORKSPACE: a LibTorch as users have it.
LIBTORCH = os.path.join(
    os.path.dirname(os.path.realpath("WORKSPACE")),
    ".venv/lib/python3.11/site-packages/torch",
)


def run(*command, **options):
    """Its result with stdout and stderr together, as text. A deadline ends what hangs."""
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=options.pop("timeout", 120),
        **options
    )


def checked(*command, **options):
    """The output of a command, which must succeed."""
    result = run(*command, **options)
    if result.returncode != 0:
        raise AssertionError(
            "%s: exit code %d\n%s" % (" ".join(command), result.returncode, result.stdout)
        )
    return result.stdout


def scratch():
    return tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))


def install_to(*arguments, **environment):
    """The last argument is the prefix."""
    return checked(*INSTALL, *arguments, env=dict(os.environ, **environment))


def files_below(root):
    """Paths below the root, of files and links."""
    return sorted(
        os.path.relpath(os.path.join(folder, file), root)
        for folder, _, files in os.walk(root)
        for file in files
    )
