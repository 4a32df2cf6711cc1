"""Which tests ./run test takes, and what it makes of a query that fails."""

import contextlib
import io
import os
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, "tools")
import run_tests
import targets
import test_summary


class FakeRule:
    def __init__(self, *sources):
        self.sources = sources


class Select(unittest.TestCase):
    def test_targets_come_whole_and_others_by_their_cases(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "a"))
            with open(os.path.join(folder, "a", "split_test.cc"), "w", encoding="utf-8") as source:
                source.write("TEST(Plan_TwoRanks, Split) {}\n")
            before = os.getcwd()
            os.chdir(folder)
            self.addCleanup(os.chdir, before)
            rules = {"//b:plan_test": FakeRule(), "//a:split_test": FakeRule("//a:split_test.cc")}
            self.assertEqual(run_tests.select(rules, "plan"), (["//b:plan_test"], []))
            self.assertEqual(run_tests.select(rules, "TwoRanks.Sp"), ([], ["//a:split_test"]))


class Within(unittest.TestCase):
    FIRST = ["//tests/server/shard/engine:a", "//tests/common/dataplane:b"]
    OTHERS = ["//tests/client:t%d" % k for k in range(60)]

    def run_within(self, *, seconds=100, of_a_run=1, interrupts_at=None, fails_at=None):
        """(summary, output, runs) with a Bazel whose runs take so long."""
        now = [0.0]
        runs = []

        def bazel_test(arguments, left):
            labels = arguments[arguments.index("--") + 1 :]
            runs.append(labels)
            now[0] += of_a_run
            summary = test_summary.Summary()
            if interrupts_at == len(runs):
                return summary, True
            self.assertGreater(left, 0)
            summary.passed = len(labels)
            summary.reached = set(labels)
            if fails_at == len(runs):
                summary.failed.append((labels[0], "failed"))
            return summary, False

        output = io.StringIO()
        with mock.patch.object(run_tests, "bazel_test", bazel_test), mock.patch.object(
            run_tests.time, "monotonic", lambda: now[0]
        ), contextlib.redirect_stdout(output):
            summary = run_tests.run_within(seconds, self.FIRST + self.OTHERS, ["--config=tsan"])
        return summary, output.getvalue(), runs

    def test_all_are_run_once_where_there_is_time(self):
        summary, output, runs = self.run_within()
        self.assertEqual(summary.exit_code(), 0)
        self.assertEqual(runs[0], self.FIRST)
        self.assertEqual(sorted(sum(runs, [])), sorted(self.FIRST + self.OTHERS))
        self.assertNotIn("NOT REACHED", output)

    def test_what_is_not_reached_is_named_and_no_failure(self):
        summary, output, runs = self.run_within(seconds=10, of_a_run=5)
        self.assertEqual(summary.exit_code(), 0)
        self.assertEqual(len(runs), 2)
        self.assertIn("NOT REACHED: 36 of 62 targets\n", output)
        missing = set(self.OTHERS) - set(runs[1])
        self.assertEqual({line[len("NOT REACHED IN TIME ") :] for line in output.splitlines()[:-1]}, missing)

    def test_the_first_ones_have_to_be_reached(self):
        summary, _, _ = self.run_within(interrupts_at=1)
        self.assertEqual(summary.exit_code(), 1)
        self.assertIn(("those of FIRST", "were not all reached in 100 s"), summary.failed)

    def test_a_later_run_may_be_interrupted(self):
        summary, output, _ = self.run_within(seconds=3, of_a_run=2, interrupts_at=2)
        self.assertEqual(summary.exit_code(), 0)
        self.assertIn("NOT REACHED: 60 of 62 targets\n", output)

    def test_a_failure_is_one(self):
        self.assertEqual(self.run_within(fails_at=2)[0].exit_code(), 1)

    def test_others_have_their_turns_on_other_days(self):
        one, two = (run_tests.runs_in_order(self.FIRST + self.OTHERS, day)[1] for day in (1, 2))
        self.assertNotEqual(set(one), set(two))
        self.assertEqual(one, run_tests.runs_in_order(self.FIRST + self.OTHERS, 1)[1])


class Run(unittest.TestCase):
    def run_main(self, *arguments, rules=None, error=None):
        """(exit code, output, arguments of bazel test) with a Bazel that passes one case."""
        passed = test_summary.Summary()
        passed.passed = 1
        asked = []

        def query(expression):
            if error:
                raise targets.QueryError(error)
            return rules[expression]

        def bazel_test(given):
            asked.append(given)
            return passed, False

        output = io.StringIO()
        with mock.patch.object(targets, "query_rules", query), mock.patch.object(
            run_tests, "bazel_test", bazel_test
        ), contextlib.redirect_stdout(output):
            code = run_tests.main(list(arguments))
        return code, output.getvalue(), asked

    def test_sanitizer_runs_its_tests_and_names_the_others(self):
        rules = {
            run_tests.SANITIZED: {"//a:t": FakeRule()},
            "%s except (%s)" % (run_tests.ALL, run_tests.SANITIZED): {"//b:trainer": FakeRule()},
        }
        code, output, asked = self.run_main("--config=tsan", rules=rules)
        self.assertEqual(code, 0)
        self.assertIn("NOT IN THIS STAGE //b:trainer\n", output)
        self.assertEqual(asked, [["--config=tsan", "--", "//a:t"]])

    def test_another_configuration_runs_all(self):
        _, output, asked = self.run_main("--config=clang", rules={run_tests.ALL: {"//a:t": FakeRule()}})
        self.assertEqual(asked, [["--config=clang", "--", "//a:t"]])
        self.assertNotIn("NOT IN THIS STAGE", output)

    CUDA_RULES = {
        run_tests.CUDA: {"//c:kernels": FakeRule(), "//c:code_test": FakeRule(), "//c:gpu_test": FakeRule()},
        run_tests.CUDA_WITHOUT_GPU: {"//c:code_test": FakeRule()},
        run_tests.GPU: {"//c:gpu_test": FakeRule()},
    }

    def test_cuda_builds_what_is_its_own_and_runs_what_needs_no_gpu(self):
        code, output, asked = self.run_main("--config=cuda", rules=self.CUDA_RULES)
        self.assertEqual(code, 0)
        self.assertIn("NOT IN THIS STAGE //c:gpu_test\n", output)
        self.assertEqual(
            asked,
            [
                [
                    "--config=cuda",
                    "--test_tag_filters=-gpu",
                    "--",
                    "//c:code_test",
                    "//c:gpu_test",
                    "//c:kernels",
                ]
            ],
        )

    def test_cuda_with_a_filter_runs_only_tests(self):
        _, _, asked = self.run_main("--config=cuda", "code", rules=self.CUDA_RULES)
        self.assertEqual(asked, [["--config=cuda", "--", "//c:code_test"]])
        code, output, asked = self.run_main("--config=cuda", "gpu", rules=self.CUDA_RULES)
        self.assertEqual((code, asked), (1, []))
        self.assertIn("no test target or case has 'gpu' in its name", output)

    def test_gpu_runs_one_test_at_a_time_and_each_time(self):
        for arguments in (["--gpu"], ["--gpu", "--config=cuda"], ["--gpu", "gpu_t"]):
            _, output, asked = self.run_main(*arguments, rules=self.CUDA_RULES)
            self.assertEqual(
                asked,
                [
                    [
                        "--config=cuda",
                        "--local_test_jobs=1",
                        "--nocache_test_results",
                        "--",
                        "//c:gpu_test",
                    ]
                ],
            )
            self.assertNotIn("NOT IN THIS STAGE", output)

    def test_gpu_under_a_sanitizer_is_refused(self):
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as error:
            self.run_main("--gpu", "--config=asan", rules={})
        self.assertIn("--gpu is for --config=cuda, not for --config=asan", error.getvalue())

    def test_without_arguments_all_is_run_and_bazel_passes_over_what_needs_cuda(self):
        _, _, asked = self.run_main(rules={})
        self.assertEqual(asked, [["//..."]])

    def test_query_that_fails_is_a_failure(self):
        code, output, asked = self.run_main("plan", error="no such package")
        self.assertEqual(code, 1)
        self.assertEqual(asked, [])
        self.assertIn("FAILED bazel query: no such package", output)
        self.assertEqual(output.splitlines()[-1], "0 passed, 1 failed")

    def test_filter_that_finds_nothing_is_a_failure(self):
        code, output, _ = self.run_main("nothing", rules={run_tests.ALL: {"//a:t": FakeRule()}})
        self.assertEqual(code, 1)
        self.assertIn("no test target or case has 'nothing' in its name", output)


if __name__ == "__main__":
    unittest.main()
