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
            return passed

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
