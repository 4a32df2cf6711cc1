"""./run test [FILTER]: runs tests with Bazel and ends with "N passed, N failed", counted in cases.

FILTER selects targets whose label contains it, and in all others the cases whose name does.
"""

import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET

import test_summary

_CASE = re.compile(r"^\s*(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.MULTILINE)


def bazel_test(arguments):
    handle, events = tempfile.mkstemp(prefix="optshard-events-", suffix=".json")
    os.close(handle)
    try:
        code = subprocess.call(
            ["bazel", "test", "--keep_going", "--build_event_json_file=" + events, *arguments]
        )
        with open(events, encoding="utf-8") as lines:
            return test_summary.summarize(lines, code)
    finally:
        os.unlink(events)


def sources_by_test():
    """Label of each test -> files of its package that it is compiled from."""
    query = subprocess.run(
        ["bazel", "query", "--keep_going", "--output=xml", "--noshow_progress", "tests(//...)"],
        stdout=subprocess.PIPE,
        check=False,
    )
    tests = {}
    for rule in ET.fromstring(query.stdout).iter("rule"):
        labels = [l.get("value") for l in rule.findall("list[@name='srcs']/label")]
        tests[rule.get("name")] = [l[2:].replace(":", "/") for l in labels if l.startswith("//")]
    return tests


def has_case(path, text):
    try:
        with open(path, encoding="utf-8") as source:
            return any(text in "%s.%s" % names for names in _CASE.findall(source.read()))
    except FileNotFoundError:  # A generated source.
        return False


def run(text):
    if text is None:
        return bazel_test(["//..."])
    tests = sources_by_test()
    whole = [label for label in tests if text in label]
    by_case = [
        label
        for label, sources in tests.items()
        if label not in whole and any(has_case(path, text) for path in sources)
    ]
    if not whole and not by_case:
        print("no test target or case has %r in its name" % text)
    summary = test_summary.Summary()
    if whole:
        summary.add(bazel_test(whole))
    if by_case:
        summary.add(bazel_test(["--test_filter=*%s*" % text, *by_case]))
    return summary


def main(arguments):
    if len(arguments) > 1:
        sys.exit("usage: ./run test [FILTER]")
    summary = run(arguments[0] if arguments else None)
    sys.stdout.flush()
    print(summary.report(), flush=True)
    return summary.exit_code()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
