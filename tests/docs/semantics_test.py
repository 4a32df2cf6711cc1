"""That docs/semantics.md names sources, tests and test cases that exist."""

import os
import re
import unittest

_ROOT = os.path.dirname(os.path.realpath("WORKSPACE"))
_LEAST_ROWS = 40


def _read(path):
    with open(os.path.join(_ROOT, path), encoding="utf-8") as file:
        return file.read()


def _rows(text):
    """Of the tables with the columns behaviour, compared, where, test: their cells."""
    rows = []
    for table in re.findall(r"(?m)^\| behaviour \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text):
        for line in table.splitlines():
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def _cases(path):
    """Names of the suites and of the cases that a test file has."""
    found = re.findall(r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", _read(path))
    return {name for both in found for name in both}


def mistakes(cells):
    """What is wrong with a row, for people."""
    if len(cells) != 4:
        return ["%d cells, expected 4" % len(cells)]
    wrong = []
    where = re.findall(r"`([^`]+)`", cells[2])
    tests = re.findall(r"`([^`]+)`", cells[3])
    files = [name for name in tests if "/" in name]
    if not where or not files:
        wrong.append("no source, or no test")
    for path in where + files:
        if not os.path.isfile(os.path.join(_ROOT, path)):
            wrong.append("no file " + path)
    files = [path for path in files if os.path.isfile(os.path.join(_ROOT, path))]
    for path in files:
        folder, name = os.path.split(path)
        named = re.escape(os.path.splitext(name)[0])  # by the target's name or among its sources
        build = _read(folder + "/BUILD.bazel")
        if not path.startswith("tests/") or not re.search(r'"%s(\.cc)?"' % named, build):
            wrong.append(path + " is in no test target")
    cases = set().union(*map(_cases, files))
    wrong += ["no test case " + name for name in tests if "/" not in name and name not in cases]
    return wrong


class Semantics(unittest.TestCase):
    def test_Rows_NameWhatExists(self):
        rows = _rows(_read("docs/semantics.md"))
        self.assertGreaterEqual(len(rows), _LEAST_ROWS)
        for cells in rows:
            with self.subTest(behaviour=cells[0]):
                self.assertEqual(mistakes(cells), [])

    def test_Mistakes_AreFound(self):
        source = "`client/rule_options.cc`"
        test = "`tests/client/rule_options_test.cc`"
        case = "`Complete_NothingSet_HasPyTorchsDefaults`"
        self.assertEqual(mistakes(["", "", source, test + " " + case]), [])
        for cells in (
            ["", "", source],
            ["", "", "", test],
            ["", "", source, case],
            ["", "", "`client/nowhere.cc`", test],
            ["", "", source, "`tests/client/nowhere_test.cc`"],
            ["", "", source, source],
            ["", "", source, test + " `Complete_NothingSet`"],
        ):
            with self.subTest(cells=cells):
                self.assertNotEqual(mistakes(cells), [])


if __name__ == "__main__":
    unittest.main()
