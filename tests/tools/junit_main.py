"""Runs the unittest cases of one file and writes them to XML_OUTPUT_FILE, one element a case.

Usage: junit_main.py FILE, in the root of the runfiles.
"""

import importlib.util
import os
import sys
import unittest
import xml.etree.ElementTree as ET


class _Result(unittest.TextTestResult):
    """Also keeps the cases that passed; unittest forgets them."""

    def __init__(self, *args):
        super().__init__(*args)
        self.succeeded = []

    def addSuccess(self, test):
        super().addSuccess(test)
        self.succeeded.append(test)


def _write_xml(path, name, result):
    suite = ET.Element("testsuite", name=name)

    def case(test, child=None, message=""):
        _, _, method = test.id().rpartition(".")
        element = ET.SubElement(suite, "testcase", classname=type(test).__name__, name=method)
        if child:
            ET.SubElement(element, child, message=message)

    for test in result.succeeded:
        case(test)
    for test, trace in result.failures + result.errors:
        # What was raised; the way there is in the log.
        raised = [line for line in trace.splitlines()[1:] if not line.startswith(" ")]
        case(test, "failure", raised[0] if raised else trace)
    for test, reason in result.skipped:
        case(test, "skipped", reason)
    ET.ElementTree(suite).write(path)


def main(path):
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    result = unittest.TextTestRunner(resultclass=_Result, verbosity=2).run(suite)
    if "XML_OUTPUT_FILE" in os.environ:
        _write_xml(os.environ["XML_OUTPUT_FILE"], name, result)
    return 0 if result.wasSuccessful() and result.testsRun else 1


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    sys.exit(main(sys.argv[1]))
