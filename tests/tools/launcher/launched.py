"""optshard-run as tests start it, and what it must not leave behind."""

import os
import signal
import subprocess
import tempfile
import time
import uuid

PATIENCE_S = 60
PROGRAM = "tools/launcher/optshard-run"
QUICKSTART = "examples/quickstart/trainer"
_MARK = "OPTSHARD_TEST_MARK"


def environment(**more):
    """This process's, without what would say where a process is in some job."""
    prefixes = ("RANK", "WORLD_SIZE", "MASTER_", "SLURM_", "OMPI_", "PMI_", "PET_", "OPTSHARD_", "OMP_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(prefixes)}
    return {**kept, **more}


def _numbers():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def children_of(pid):
    found = []
    for number in _numbers():
        fields = _read("/proc/%d/stat" % number).rpartition(b")")[2].split()
        if len(fields) > 1 and int(fields[1]) == pid and fields[0] != b"Z":
            found.append(number)
    return found


def wait_until(condition, what):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("not within %d s: %s" % (PATIENCE_S, what))
        time.sleep(0.01)


class Prepared:
    """A place for one optshard-run and what it starts: all have a mark in their environment, and a
    TMPDIR of their own. Use it by `with`."""

    def __init__(self, **variables):
        self.folder = tempfile.TemporaryDirectory()
        self._mark = uuid.uuid4().hex
        self._temporary = os.path.join(self.folder.name, "tmp")
        os.mkdir(self._temporary)
        self.environment = environment(**{_MARK: self._mark, "TMPDIR": self._temporary}, **variables)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.living():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.folder.cleanup()

    def living(self, name=""):
        """Numbers of all processes that it has started, directly or not, and its own; or of those
        that are called so."""
        mark = ("%s=%s" % (_MARK, self._mark)).encode()
        return [
            pid
            for pid in _numbers()
            if mark in _read("/proc/%d/environ" % pid).split(b"\0")
            and _read("/proc/%d/stat" % pid).rpartition(b")")[2].split()[:1] != [b"Z"]
            and name in _read("/proc/%d/comm" % pid).decode()
        ]

    def left_files(self):
        return os.listdir(self._temporary)


class Launched(Prepared):
    """A running optshard-run; `words` are its options and the program."""

    def __init__(self, *words, stdout=None, **variables):
        super().__init__(**variables)
        self._stdout_path = os.path.join(self.folder.name, "stdout")
        self._stderr_path = os.path.join(self.folder.name, "stderr")
        with open(self._stdout_path, "wb") as out, open(self._stderr_path, "wb") as err:
            self.process = subprocess.Popen(
                [PROGRAM, *words],
                stdin=subprocess.DEVNULL,
                stdout=out if stdout is None else stdout,
                stderr=err,
                env=self.environment,
                start_new_session=True,
            )

    def __exit__(self, *exception):
        self.process.kill()
        self.process.wait(PATIENCE_S)
        super().__exit__(*exception)

    @property
    def stdout(self):
        return _read(self._stdout_path).decode()

    @property
    def stderr(self):
        return _read(self._stderr_path).decode()

    def wait(self):
        """Its exit code."""
        return self.process.wait(PATIENCE_S)

    def wait_for(self, text, times=1):
        """Until stdout has the text so often."""
        wait_until(
            lambda: self.stdout.count(text) >= times or self.process.poll() is not None,
            "%r in the output" % text,
        )
        if self.stdout.count(text) < times:
            raise AssertionError("ended without %r:\n%s%s" % (text, self.stdout, self.stderr))

    def runner(self):
        """The process that runs the job, which the first one guards."""
        (runner,) = children_of(self.process.pid)
        return runner
