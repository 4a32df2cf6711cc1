"""That the command lines in the documents are understood by what they call."""

import glob
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.getcwd(), "tests", "docs"))

import command_lines  # noqa: E402

_PATIENCE_S = 60
_PROGRAMS = {
    "bin/optshard-coordinator": "server/coordinator/optshard-coordinator",
    "bin/optshard-server": "server/node/optshard-server",
    "bin/optshard-checkpoint": "server/checkpoint/optshard-checkpoint",
    "bin/optshard-run": "tools/launcher/optshard-run",
    "bin/optshard-train-digits": "examples/optshard-train-digits",
    "bin/optshard-recipe": "examples/optshard-recipe",
    "bin/optshard-train-language": "examples/optshard-train-language",
    "bin/optshard-read-state": "examples/optshard-read-state",
}
# The test is marked `external`: it reads what lies beside the real WORKSPACE.
_ROOT = os.path.dirname(os.path.realpath("WORKSPACE"))


def _read(path):
    with open(os.path.join(_ROOT, path), encoding="utf-8") as file:
        return file.read()


def _documents():
    found = ["README.md", "CONTRIBUTING.md"]
    found += glob.glob("docs/**/*.md", root_dir=_ROOT, recursive=True)
    return sorted(found)


def _output(*command):
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=_PATIENCE_S,
    )


def _wrong_with_program(name, arguments):
    if name not in _PROGRAMS:
        return "there is no program " + name
    options, program = arguments, []
    if "--" in arguments:
        cut = arguments.index("--")
        options, program = arguments[:cut], arguments[cut:]
        if len(program) < 2:
            return "no program after --"
    # --help is printed only once the rest of the line is known to be right.
    result = _output(_PROGRAMS[name], *options, "--help", *program)
    return None if result.returncode == 0 else result.stdout


def _wrong_with_bazel(arguments):
    for argument in arguments[1:]:
        config = re.fullmatch(r"--config=(\w+)", argument)
        if config and not re.search(r"^\w+:%s " % config.group(1), _read(".bazelrc"), re.M):
            return "no configuration %s in .bazelrc" % config.group(1)
        label = re.fullmatch(r"-?//([\w/]*?)(?:/?(\.\.\.)|:([\w.-]+))", argument)
        if label is None:
            if argument.startswith(("//", "-//")):
                return "not a label: " + argument
            continue
        package, everything, target = label.groups()
        if everything:
            if not os.path.isdir(os.path.join(_ROOT, package)):
                return "no folder " + package
        elif '"%s"' % target not in _read(os.path.join(package, "BUILD.bazel")):
            return "no target " + argument
    known = ("build", "test", "run", "query", "clean")
    return None if arguments and arguments[0] in known else "no command of bazel"


def _wrong_with_run(arguments):
    if not arguments:
        return None
    listed = _output("bash", os.path.join(_ROOT, "run")).stdout
    if not re.search(r"(?m)^  %s\b" % re.escape(arguments[0]), listed):
        return "./run has no command " + arguments[0]
    if arguments[0] == "bench":
        known = _output("python3", os.path.join(_ROOT, "benchmarks", "run_bench.py"), "--help").stdout
        for argument in arguments[1:]:
            if not re.search(r"(?<![\w-])%s\b" % re.escape(argument.split("=")[0]), known):
                return "./run bench does not know " + argument
    if arguments[0] in ("test", "build"):
        return _wrong_with_bazel([arguments[0]] + [a for a in arguments[1:] if a.startswith("-")])
    if arguments[0] == "demo":
        return _wrong_with_program("bin/optshard-train-digits", arguments[1:])
    return None


def wrong_with(line):
    """What is wrong with a command line of a document, or None."""
    words = shlex.split(line)
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    name, arguments = words[0], words[1:]
    if name.startswith("bin/"):
        return _wrong_with_program(name, arguments)
    if name == "./run":
        return _wrong_with_run(arguments)
    if name == "bazel":
        return _wrong_with_bazel(arguments)
    return None


class Extraction(unittest.TestCase):
    def test_Text_WithBlocksAndCode_GivesEveryCommand(self):
        text = (
            "Say `./run demo` or\n`bin/a --b=c`; `binary` is no command.\n\n"
            "    bin/first --x=1 \\\n        --y    and a remark\n"
            "    RANK=0 bin/second &\n\n"
            "```\n$ bazel build //x:y  # a remark\nelse\n```\n\n"
            "```cpp\n./run cpp\n```\n\n- a list\n  ./run inside\n"
        )
        self.assertEqual(
            command_lines.command_lines(text),
            [
                "bin/first --x=1 --y",
                "RANK=0 bin/second",
                "bazel build //x:y",
                "./run demo",
                "bin/a --b=c",
            ],
        )


class Checks(unittest.TestCase):
    def test_WrongLines_AreFound(self):
        for line in (
            "bin/optshard-coordinator --wrold-size=2",
            "bin/optshard-coordinator --world-size=2 stray",
            "RANK=0 bin/optshard-server --node-ranks=0 --drain-timeout=soon",
            "bin/optshard-train-digits --epoch=2",
            "bin/optshard-recipe --mode=both",
            "bin/optshard-run --rank=4 -- ./trainer",
            "bin/optshard-run -n 4 ./trainer",
            "bin/optshard-run -n 4 --",
            "bin/optshard-nothing",
            "./run nothing",
            "./run bench step_nothing",
            "./run bench --round=3",
            "./run demo --nothing",
            "./run test --config=nothing",
            "bazel test --config=nothing //tests/...",
            "bazel test //nowhere/...",
            "bazel build //server/node:nothing",
            "bazel bild //server/node:optshard-server",
        ):
            with self.subTest(line=line):
                self.assertIsNotNone(wrong_with(line))

    def test_RightLines_AreNot(self):
        for line in (
            "bin/optshard-coordinator --world_size=2 --lease=1m30s",
            "bin/optshard-server --nokeeper --node-ranks 0-3",
            "bin/optshard-run -n 4 -- ./trainer --epochs=5",
            "./run bench step_gloo --rounds=3",
            "bazel test --config=tsan //tests/...",
            "bazel build //server/node:optshard-server",
        ):
            with self.subTest(line=line):
                self.assertIsNone(wrong_with(line))


class Documents(unittest.TestCase):
    def test_EveryCommandLine_IsUnderstood(self):
        checked = 0
        for document in _documents():
            for line in command_lines.command_lines(_read(document)):
                checked += 1
                with self.subTest(document=document, line=line):
                    self.assertIsNone(wrong_with(line))
        self.assertGreater(checked, 20)


class Sidecar(unittest.TestCase):
    """The commands of docs/sidecar.md, run, with ports and paths of this test's own."""

    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self._processes = []

    def tearDown(self):
        for process in self._processes:
            process.kill()
            process.wait()
        self._folder.cleanup()

    def _path(self, name):
        return os.path.join(self._folder.name, name)

    def _start(self, line, replaced):
        """Starts it and returns its process and port."""
        words = shlex.split(line)
        port_file = self._path(os.path.basename(words[0]) + ".port")
        command = [_PROGRAMS[words[0]], "--port-file=" + port_file]
        for word in words[1:]:
            name = word.split("=")[0]
            command.append("%s=%s" % (name, replaced[name]) if name in replaced else word)
        process = subprocess.Popen(command)
        self._processes.append(process)
        deadline = time.monotonic() + _PATIENCE_S
        while not os.path.exists(port_file):
            self.assertIsNone(process.poll(), "%s has ended" % command)
            self.assertLess(time.monotonic(), deadline, "no port file")
            time.sleep(0.01)
        with open(port_file, encoding="ascii") as port:
            return process, int(port.read())

    def test_Commands_OfTheDocument_StartACoordinatorAndAServer(self):
        lines = command_lines.command_lines(_read("docs/sidecar.md"))
        coordinators = [line for line in lines if line.startswith("bin/optshard-coordinator ")]
        servers = [line for line in lines if line.startswith("bin/optshard-server ")]
        self.assertTrue(coordinators and servers)
        coordinator, port = self._start(coordinators[0], {"--listen": "127.0.0.1:0"})
        server, _ = self._start(
            servers[0],
            {"--coordinator": "127.0.0.1:%d" % port, "--socket": self._path("socket")},
        )
        for process in (server, coordinator):
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(_PATIENCE_S), 0)


if __name__ == "__main__":
    unittest.main()
