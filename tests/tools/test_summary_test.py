"""What `./run test` counts, from events as Bazel writes them."""

import json
import os
import tempfile
import unittest

from tools import test_summary

PASSING = """<?xml version="1.0"?>
<testsuites><testsuite name="Plan">
  <testcase name="Empty_Plan_IsValid" status="run" result="completed" classname="Plan"/>
  <testcase name="Two_Ranks_Split" status="run" result="completed" classname="Plan"/>
</testsuite></testsuites>"""

FAILING = """<testsuites><testsuite name="Plan">
  <testcase name="Good" status="run" result="completed" classname="Plan"/>
  <testcase name="Bad" status="run" result="completed" classname="Plan">
    <failure message="plan_test.cc:7&#x0A;Expected equality" type=""/>
  </testcase>
</testsuite></testsuites>"""

SKIPPING = """<testsuites><testsuite name="Simd">
  <testcase name="Good" status="run" result="completed" classname="Simd"/>
  <testcase name="Avx512" status="run" result="skipped" classname="Simd">
    <skipped message="simd_test.cc:9&#x0A;this CPU has no AVX-512"/>
  </testcase>
  <testcase name="DISABLED_Later" status="notrun" result="suppressed" classname="Simd"/>
</testsuite></testsuites>"""

ALL_SKIPPED = """<testsuites><testsuite name="Trainer">
  <testcase name="One" status="run" result="skipped" classname="Trainer"><skipped message="no"/></testcase>
  <testcase name="Two" status="run" result="skipped" classname="Trainer"><skipped message="no"/></testcase>
</testsuite></testsuites>"""

# What Bazel writes itself for a test that left no XML.
CRASHED = """<testsuites><testsuite name="plan_test" tests="1" failures="0" errors="1">
  <testcase name="plan_test" status="run" duration="1" time="1">
    <error message="exited with error code 139"></error>
  </testcase>
</testsuite></testsuites>"""


class TestSummary(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)

    def result(self, label, status, xml=None, attempt=1, shard=1, run=1):
        """A testResult event; `xml` is what lies in its test.xml."""
        outputs = [{"name": "test.log", "uri": "file:///logs/test.log"}]
        if xml is not None:
            handle, path = tempfile.mkstemp(suffix=" test.xml", dir=self._folder.name)
            with os.fdopen(handle, "w") as out:
                out.write(xml)
            outputs.append({"name": "test.xml", "uri": "file://" + path.replace(" ", "%20")})
        return {
            "id": {"testResult": {"label": label, "run": run, "shard": shard, "attempt": attempt}},
            "testResult": {"status": status, "testActionOutput": outputs},
        }

    def summarize(self, *events, code=0, **more):
        return test_summary.summarize([json.dumps(event) + "\n" for event in events], code, **more)

    def test_passed_cases_are_counted_not_targets(self):
        summary = self.summarize(
            self.result("//a:plan_test", "PASSED", PASSING),
            self.result("//b:plan_test", "PASSED", PASSING),
        )
        self.assertEqual(summary.total_line(), "4 passed, 0 failed")
        self.assertEqual(summary.exit_code(), 0)

    def test_failed_case_is_named_with_its_message(self):
        summary = self.summarize(self.result("//a:plan_test", "FAILED", FAILING), code=3)
        self.assertEqual(
            summary.report(),
            "FAILED //a:plan_test Plan.Bad: plan_test.cc:7 Expected equality\n1 passed, 1 failed",
        )
        self.assertEqual(summary.exit_code(), 1)

    def test_skips_stand_apart_with_their_reasons(self):
        summary = self.summarize(self.result("//a:simd_test", "PASSED", SKIPPING))
        self.assertEqual(
            summary.report(),
            "SKIPPED //a:simd_test Simd.Avx512: simd_test.cc:9 this CPU has no AVX-512\n"
            "SKIPPED //a:simd_test Simd.DISABLED_Later: disabled by its name\n"
            "1 passed, 0 failed, 2 skipped",
        )
        self.assertEqual(summary.exit_code(), 0)

    def test_target_that_skipped_every_case_is_named(self):
        summary = self.summarize(
            self.result("//a:trainer_test", "PASSED", ALL_SKIPPED),
            self.result("//b:simd_test", "PASSED", SKIPPING),
        )
        self.assertIn("SKIPPED WHOLE //a:trainer_test: no case of it ran", summary.report())
        self.assertNotIn("SKIPPED WHOLE //b:simd_test", summary.report())
        self.assertEqual(summary.total_line(), "1 passed, 0 failed, 4 skipped")

    def test_of_a_run_that_was_interrupted_what_had_ended_counts(self):
        unbuilt = {"id": {"targetCompleted": {"label": "//d:t"}}, "completed": {"success": False}}
        summary = self.summarize(
            self.result("//a:plan_test", "PASSED", PASSING),
            self.result("//b:t", "INCOMPLETE"),
            self.result("//c:t", "NO_STATUS"),
            unbuilt,
            code=8,
            interrupted=True,
        )
        self.assertEqual(summary.total_line(), "2 passed, 0 failed")
        self.assertEqual(summary.reached, {"//a:plan_test"})
        for status, xml in (("FAILED", FAILING), ("TIMEOUT", None)):
            failed = self.summarize(self.result("//a:plan_test", status, xml), code=8, interrupted=True)
            self.assertEqual(len(failed.failed), 1, status)

    def test_crash_counts_as_one_failure(self):
        summary = self.summarize(self.result("//a:plan_test", "FAILED", CRASHED), code=3)
        self.assertEqual(summary.total_line(), "0 passed, 1 failed")
        self.assertIn("139", summary.report())

    def test_crash_while_writing_results_counts_as_one_failure(self):
        summary = self.summarize(self.result("//a:t", "FAILED", "<testsuites><test"), code=3)
        self.assertEqual(summary.total_line(), "0 passed, 1 failed")

    def test_crash_after_passing_cases_counts_beside_them(self):
        summary = self.summarize(self.result("//a:plan_test", "FAILED", PASSING), code=3)
        self.assertEqual(summary.total_line(), "2 passed, 1 failed")
        self.assertIn("outside its cases", summary.report())

    def test_timeout_counts_as_one_failure_and_ignores_its_xml(self):
        summary = self.summarize(self.result("//a:plan_test", "TIMEOUT", PASSING), code=3)
        self.assertEqual(summary.total_line(), "0 passed, 1 failed")
        self.assertIn("//a:plan_test: timed out", summary.report())

    def test_passing_target_without_xml_is_a_failure(self):
        summary = self.summarize(self.result("//a:plan_test", "PASSED"))
        self.assertEqual(summary.total_line(), "0 passed, 1 failed")

    def test_target_that_does_not_build_counts_as_failed(self):
        unbuilt = {"id": {"targetCompleted": {"label": "//a:broken"}}, "completed": {}}
        summary = self.summarize(
            unbuilt, self.result("//b:plan_test", "PASSED", PASSING), code=1
        )
        self.assertEqual(summary.report(), "FAILED //a:broken: did not build\n2 passed, 1 failed")

    def test_target_that_is_not_analysed_counts_as_failed(self):
        aborted = {
            "id": {"targetCompleted": {"label": "//a:broken"}},
            "aborted": {"reason": "ANALYSIS_FAILURE"},
        }
        self.assertEqual(self.summarize(aborted, code=1).total_line(), "0 passed, 1 failed")

    def test_target_of_another_platform_does_not_count(self):
        skipped = {
            "id": {"targetCompleted": {"label": "//a:gpu_test"}},
            "aborted": {"reason": "SKIPPED"},
        }
        summary = self.summarize(skipped, self.result("//a:plan_test", "PASSED", PASSING))
        self.assertEqual(summary.total_line(), "2 passed, 0 failed")

    def test_package_that_does_not_load_counts_as_failed(self):
        events = [
            {"id": {"pattern": {"pattern": ["//..."]}}, "aborted": {"reason": "LOADING_FAILURE"}},
            self.result("//a:plan_test", "PASSED", PASSING),
        ]
        self.assertEqual(self.summarize(*events, code=1).total_line(), "2 passed, 1 failed")

    def test_bazel_failure_that_no_event_explains_counts_as_failed(self):
        summary = self.summarize(self.result("//a:plan_test", "PASSED", PASSING), code=37)
        self.assertEqual(
            summary.report(), "FAILED bazel: exited with code 37\n2 passed, 1 failed"
        )

    def test_events_that_break_off_count_as_a_failure(self):
        whole = json.dumps(self.result("//a:plan_test", "PASSED", PASSING))
        summary = test_summary.summarize([whole + "\n", whole[:50]], 1)
        self.assertIn("FAILED bazel: its list of events breaks off", summary.report())
        self.assertEqual(summary.total_line(), "2 passed, 1 failed")

    def test_last_attempt_counts(self):
        summary = self.summarize(
            self.result("//a:plan_test", "FAILED", FAILING, attempt=1),
            self.result("//a:plan_test", "PASSED", PASSING, attempt=2),
        )
        self.assertEqual(summary.total_line(), "2 passed, 0 failed")

    def test_all_shards_count(self):
        summary = self.summarize(
            self.result("//a:plan_test", "PASSED", PASSING, shard=1),
            self.result("//a:plan_test", "PASSED", PASSING, shard=2),
        )
        self.assertEqual(summary.total_line(), "4 passed, 0 failed")

    def test_no_test_at_all_is_not_success(self):
        summary = self.summarize(code=4)
        self.assertEqual(summary.total_line(), "0 passed, 0 failed")
        self.assertEqual(summary.exit_code(), 1)


if __name__ == "__main__":
    unittest.main()
