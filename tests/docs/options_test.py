"""That docs/options.md says what the programs' --help and the sources say."""

import glob
import os
import re
import subprocess
import unittest

_PATIENCE_S = 60
_PROGRAMS = (
    "server/coordinator/optshard-coordinator",
    "server/node/optshard-server",
    "server/checkpoint/optshard-checkpoint",
    "tools/launcher/optshard-run",
    "examples/optshard-train-digits",
    "examples/optshard-recipe",
    "examples/optshard-train-language",
    "examples/optshard-read-state",
    # With a command that has a page of its own.
    "server/node/optshard-server --memory-need",
    "server/node/optshard-server --drain",
)
_ROOT = os.path.dirname(os.path.realpath("WORKSPACE"))


def _read(path):
    with open(os.path.join(_ROOT, path), encoding="utf-8") as file:
        return file.read()


def _section(title):
    """The text below a heading, up to the next one."""
    found = re.search(r"(?ms)^## %s\n(.*?)(?=^## |\Z)" % re.escape(title), _read("docs/options.md"))
    return found.group(1) if found else ""


def _rows(title):
    """Cells of the table's rows, without the two of its head."""
    lines = re.findall(r"(?m)^\| *(.*?) *\|$", _section(title))
    return [[cell.strip("` ") for cell in line.split("|")] for line in lines[2:]]


class Programs(unittest.TestCase):
    maxDiff = None

    def test_Help_IsWhatTheDocumentShows(self):
        for program in _PROGRAMS:
            name = os.path.basename(program)
            with self.subTest(program=name):
                page = subprocess.run(
                    [*program.split(), "--help"],
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                    timeout=_PATIENCE_S,
                ).stdout
                shown = re.search(r"(?ms)^```text\n(.*?)^```$", _section(name))
                self.assertIsNotNone(shown, "no section of " + name)
                self.assertEqual(shown.group(1), page, "put the page of --help there")


class Variables(unittest.TestCase):
    def test_OfATrainer_AreThoseThatTheSourceReads(self):
        source = _read("client/sharded_optimizer_options.cc")
        header = _read("client/sharded_optimizer_options.h")
        expected = []
        for variable, option in re.findall(r'"(OPTSHARD_\w+)",\s*options\.(\w+)', source):
            default = re.search(r'std::string %s(?: = "(.*)")?;' % option, header).group(1) or ""
            expected.append([variable, option, default])
        expected.append(["OPTSHARD_JOIN_TIMEOUT", "join_timeout", "60s"])
        self.assertIn('"OPTSHARD_JOIN_TIMEOUT"', source)
        self.assertIn("join_timeout = absl::Seconds(60)", header)
        self.assertGreaterEqual(len(expected), 9)
        listed = [row[:3] for row in _rows("Variables of a trainer")]
        self.assertEqual(
            sorted(row for row in listed if row[0].startswith("OPTSHARD_")), sorted(expected)
        )
        others = ("RANK", "GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "MASTER_ADDR",
                  "MASTER_PORT")
        for variable in others:
            self.assertIn(variable, "`, `".join(row[0] for row in listed).split("`, `"))

    def test_OfTheScripts_AreThoseThatTheyRead(self):
        text = _read(".ci/run") + _read("run")
        for script in glob.glob("tools/**/*.sh", root_dir=_ROOT, recursive=True):
            text += _read(script)
        read = dict(re.findall(r"\$\{(OPTSHARD_\w+):-(\w+)\}", text))
        self.assertTrue(read)
        listed = {row[0]: row[1] for row in _rows("Variables of the scripts")}
        self.assertEqual(listed, read)


if __name__ == "__main__":
    unittest.main()
