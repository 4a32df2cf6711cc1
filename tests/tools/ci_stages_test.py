"""How continuous integration judges its stages."""

import os
import subprocess
import tempfile
import unittest

_LIBRARY = os.path.realpath("tools/ci_stages.sh")


class Stages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self._bazel_calls = os.path.join(folder.name, "calls")
        bazel = os.path.join(folder.name, "bazel")
        with open(bazel, "w", encoding="utf-8") as script:
            script.write("#!/bin/sh\necho $@ >>%s\n" % self._bazel_calls)
        os.chmod(bazel, 0o755)
        self._path = folder.name + ":/usr/bin:/bin"

    def run_stages(self, script, **environment):
        """(exit code, output) of a script of stages that reports at its end."""
        done = subprocess.run(
            ["bash", "-c", "source %s\n%s\nreport_stages\nstages_passed" % (_LIBRARY, script)],
            env={"PATH": self._path, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=50,
            check=False,
        )
        return done.returncode, done.stdout

    def test_total_of_the_first_stage_ends_the_output(self):
        code, output = self.run_stages(
            "stage tests 20 echo '7 passed, 0 failed, 2 skipped'\n"
            "stage tsan 20 echo '3 passed, 0 failed'"
        )
        self.assertEqual(code, 0, output)
        self.assertEqual(output.splitlines()[-1], "7 passed, 0 failed")

    def test_skips_of_each_stage_stand_beside_its_time(self):
        _, output = self.run_stages(
            "stage tests 20 true\nstage asan 20 echo '3 passed, 0 failed, 5 skipped'"
        )
        self.assertRegex(output, r"passed: asan \(\d+ s: 3 passed, 0 failed, 5 skipped\)")

    def test_what_a_stage_did_not_reach_stands_beside_its_time(self):
        code, output = self.run_stages(
            "stage tests 20 true\nstage tsan 20 printf 'NOT REACHED: 3 of 5 targets\\n2 passed, 0 failed\\n'"
        )
        self.assertEqual(code, 0, output)
        self.assertRegex(output, r"passed: tsan \(\d+ s: 2 passed, 0 failed; NOT REACHED: 3 of 5 targets\)")

    def test_stages_share_the_time_that_is_left(self):
        _, output = self.run_stages("share_of_time 2 100\nshare_of_time 1 4990", OPTSHARD_CI_SECONDS="5000")
        self.assertIn("2450\n60\n", output)

    def test_stage_that_fails_is_red_and_the_next_ones_run(self):
        code, output = self.run_stages("stage tests 20 false\nstage tsan 20 echo here")
        self.assertNotEqual(code, 0)
        self.assertIn("FAILED: tests (exit code 1", output)
        self.assertIn("passed: tsan", output)
        self.assertEqual(output.splitlines()[-1], "0 passed, 1 failed")

    def test_stage_that_hangs_is_stopped_and_red(self):
        code, output = self.run_stages("stage tests 20 true\nstage tsan 1 sleep 100")
        self.assertNotEqual(code, 0)
        self.assertIn("NOT FINISHED: tsan", output)

    def test_bazel_that_is_still_busy_with_a_stopped_stage_is_ended(self):
        self.run_stages("stage tests 1 sleep 100")
        with open(self._bazel_calls, encoding="utf-8") as calls:
            self.assertEqual(calls.read(), "shutdown\n")

    def test_stage_that_ignores_being_stopped_is_killed_and_red(self):
        code, output = self.run_stages(
            "stage tests 20 true\nstage tsan 1 bash -c 'trap : TERM; while :; do sleep 0.1; done'",
            OPTSHARD_CI_GRACE_SECONDS="1",
        )
        self.assertNotEqual(code, 0)
        self.assertIn("NOT FINISHED: tsan", output)

    def test_stage_that_leaves_a_process_behind_does_not_hold_up_the_rest(self):
        code, output = self.run_stages("stage tests 20 bash -c 'sleep 100 & echo left'")
        self.assertEqual(code, 0, output)
        self.assertIn("left", output)

    def test_stage_that_does_not_start_is_red(self):
        code, output = self.run_stages("stage tests 20 true\nstage lint 20 ./no_such_tool")
        self.assertNotEqual(code, 0)
        self.assertIn("NOT STARTED: lint", output)

    def test_stage_that_the_time_does_not_reach_is_red(self):
        code, output = self.run_stages(
            "stage tests 20 true\nstage lint 20 true", OPTSHARD_CI_SECONDS="59"
        )
        self.assertNotEqual(code, 0)
        self.assertIn("NOT RUN: lint", output)

    def test_time_for_all_stages_bounds_each(self):
        code, output = self.run_stages(
            "stage tests 1000 sleep 100", OPTSHARD_CI_SECONDS="2", OPTSHARD_CI_LEAST_SECONDS="1"
        )
        self.assertNotEqual(code, 0)
        self.assertIn("NOT FINISHED: tests", output)

    def test_no_stage_at_all_is_red(self):
        code, _ = self.run_stages("")
        self.assertNotEqual(code, 0)


if __name__ == "__main__":
    unittest.main()
