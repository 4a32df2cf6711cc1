"""Counts test cases of one `bazel test` run from its Build Event Protocol file.

The events say which targets were built, which tests ran or were cached and where their XML lies, so
a file left over from an earlier run never counts. A target that does not build, crashes or times out
has lost its cases and counts as one failure.
"""

import collections
import json
import os
import urllib.parse
import xml.etree.ElementTree as ET

# Statuses of a test that has no trustworthy list of cases, and what they mean.
_WITHOUT_CASES = {
    "TIMEOUT": "timed out",
    "INCOMPLETE": "was interrupted",
    "REMOTE_FAILURE": "could not be run",
    "FAILED_TO_BUILD": "did not build",
    "NO_STATUS": "did not run",
    "TOOL_HALTED_BEFORE_TESTING": "did not run",
}
# Those of a test that was running when its run was interrupted.
_UNFINISHED = ("INCOMPLETE", "NO_STATUS", "REMOTE_FAILURE", "TOOL_HALTED_BEFORE_TESTING")


class Summary:
    """Passed cases, and failed and skipped ones by name with a reason."""

    def __init__(self):
        self.passed = 0
        self.failed = []
        self.skipped = []
        # Label -> how many of its cases ran, skipped ones not counted.
        self.ran = collections.Counter()
        self.reached = set()  # labels of tests that ended

    def total_line(self):
        line = "%d passed, %d failed" % (self.passed, len(self.failed))
        return line + (", %d skipped" % len(self.skipped) if self.skipped else "")

    def report(self):
        lines = ["SKIPPED %s: %s" % entry for entry in self.skipped]
        lines += ["SKIPPED WHOLE %s: no case of it ran" % label for label in self._skipped_whole()]
        lines += ["FAILED %s: %s" % entry for entry in self.failed]
        return "\n".join(lines + [self.total_line()])

    def _skipped_whole(self):
        labels = {name.partition(" ")[0] for name, _ in self.skipped}
        return sorted(label for label in labels if not self.ran[label])

    def exit_code(self):
        return 0 if self.passed and not self.failed else 1

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.ran += other.ran
        self.reached |= other.reached


def _path(uri):
    return urllib.parse.unquote(urllib.parse.urlparse(uri).path)


def _one_line(text):
    return " ".join(text.split())


def _outputs(result):
    return {o["name"]: _path(o["uri"]) for o in result.get("testActionOutput", []) if "uri" in o}


def _add_cases(summary, label, xml_path):
    """Adds the cases of one XML file. Returns whether it named one that failed."""
    any_failed = False
    for case in ET.parse(xml_path).getroot().iter("testcase"):
        suite = case.get("classname") or ""
        name = "%s %s" % (label, ".".join(filter(None, [suite, case.get("name", "")])))
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        skipped = case.find("skipped")
        if bad is not None:
            any_failed = True
            summary.ran[label] += 1
            summary.failed.append((name, _one_line(bad.get("message") or bad.text or "failed")[:200]))
        elif skipped is not None:
            reason = _one_line(skipped.get("message") or skipped.text or "")
            summary.skipped.append((name, reason or "no reason given"))
        elif case.get("status") == "notrun":
            summary.skipped.append((name, "disabled by its name"))
        else:
            summary.passed += 1
            summary.ran[label] += 1
    return any_failed


def _add_test(summary, label, result):
    status = result.get("status", "NO_STATUS")
    outputs = _outputs(result)
    log = outputs.get("test.log", "no log")
    if status in _WITHOUT_CASES:
        summary.failed.append((label, "%s, see %s" % (_WITHOUT_CASES[status], log)))
        return
    any_failed = False
    xml_path = outputs.get("test.xml")
    try:
        if xml_path and os.path.exists(xml_path):
            any_failed = _add_cases(summary, label, xml_path)
        elif status in ("PASSED", "FLAKY"):
            summary.failed.append((label, "left no test.xml, see %s" % log))
    except ET.ParseError:
        summary.failed.append((label, "crashed while it wrote its results, see %s" % log))
        return
    if status not in ("PASSED", "FLAKY") and not any_failed:
        summary.failed.append((label, "exited with an error outside its cases, see %s" % log))


def _failed_to_build(event):
    """The label (or pattern) that this event says could not be built, or None."""
    identity = event["id"]
    if "aborted" in event:
        if event["aborted"].get("reason") in ("SKIPPED", "NO_BUILD"):
            return None
        if "targetCompleted" in identity:
            return identity["targetCompleted"]["label"]
        patterns = identity.get("pattern", {}).get("pattern") or []
        return " ".join(patterns) or None
    if "completed" in event and not event["completed"].get("success"):
        return identity["targetCompleted"]["label"]
    return None


def summarize(event_lines, bazel_exit_code, interrupted=False):
    """The Summary of one run, from the lines of its --build_event_json_file.

    Of a run that was interrupted, it is that of the tests which had ended by then.
    """
    summary = Summary()
    results = {}  # (label, run, shard) -> (attempt, result); a later attempt replaces an earlier.
    unbuilt = {}  # An ordered set.
    for line in event_lines:
        if not line.strip():
            continue
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            if interrupted:
                break
            summary.failed.append(("bazel", "its list of events breaks off: it was killed, or the disk is full"))
            break
        identity = event.get("id", {})
        if "testResult" in identity and "testResult" in event:
            key = identity["testResult"]
            slot = (key["label"], key.get("run", 1), key.get("shard", 1))
            attempt = key.get("attempt", 1)
            if slot not in results or attempt >= results[slot][0]:
                results[slot] = (attempt, event["testResult"])
        else:
            label = _failed_to_build(event)
            if label:
                unbuilt[label] = True
    for (label, _, _), (_, result) in sorted(results.items()):
        if interrupted and result.get("status", "NO_STATUS") in _UNFINISHED:
            continue
        _add_test(summary, label, result)
        summary.reached.add(label)
    if interrupted:
        return summary
    tested = {label for label, _, _ in results}
    for label in unbuilt:
        if label not in tested:
            summary.failed.append((label, "did not build"))
    # 4: built, but there was no test.
    if bazel_exit_code not in (0, 4) and not summary.failed:
        summary.failed.append(("bazel", "exited with code %d" % bazel_exit_code))
    return summary
