"""That the tables of transitions in documents are those of the sources, row by row."""

import os
import re
import unittest

_ROOT = os.path.dirname(os.path.realpath("WORKSPACE"))
_HEADING = "## How the owners go on\n"


def _read(path):
    with open(os.path.join(_ROOT, path), encoding="utf-8") as file:
        return file.read()


def _rows_of_document():
    section = _read("docs/life_of_a_step.md").split(_HEADING)[1].split("\n## ")[0]
    rows = re.findall(r"(?m)^\| ([a-z ]+) \| ([^|]+) \| ([^|:,;]+)", section)
    return [(name, what, how.strip()) for name, what, how in rows if name != "transition"]


def _rows_of_header():
    header = _read("common/step_transition.h").split("#ifndef")[0]
    rows = re.findall(r"(?m)^//   (\S+(?: \S+)?)  +(\S.*?)  +(\S[^:\n]*)", header)
    return [(name, what, how.strip()) for name, what, how in rows if name != "transition"]


def _names_of_function():
    body = _read("common/step_transition.cc").split("NameOf(StepTransition")[1].split("\n}")[0]
    return [name for name in re.findall(r'return "([^"]+)"', body) if name != "unknown"]


class Transitions(unittest.TestCase):
    def test_Names_AreThoseOfTheFunction(self):
        self.assertEqual([row[0] for row in _rows_of_document()], _names_of_function())
        self.assertEqual([row[0] for row in _rows_of_header()], _names_of_function())

    def test_WhatTheyHaveAndHowTheyGoOn_AreAsInTheHeader(self):
        for told, declared in zip(_rows_of_document(), _rows_of_header()):
            with self.subTest(transition=told[0]):
                self.assertEqual(declared, told)


class LaunchPhases(unittest.TestCase):
    """tests/tools/launcher compares the header's table with the function."""

    def test_OfTheDocument_AreThoseOfTheHeader(self):
        section = _read("docs/deploy/launcher.md").split("## How it ends\n")[1].split("\n## ")[0]
        told = [
            [cell.strip() for cell in row.strip("|").split("|")]
            for row in re.findall(r"(?m)^\|.*\|$", section)
            if not row.startswith("|--")
        ]
        header = _read("tools/launcher/launch_phase.h").split("#ifndef")[0]
        rows = re.findall(r"(?m)^//   (\S.*)$", header)
        self.assertEqual(told, [re.split(r" {2,}", row) for row in rows])
        self.assertEqual(len(told), 1 + 8)


if __name__ == "__main__":
    unittest.main()
