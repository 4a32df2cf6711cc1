"""Which tests ./run check takes for those of a changed file."""

import contextlib
import io
import sys
import unittest
from unittest import mock

sys.path.insert(0, "tools")
import affected_tests
import targets


def rule(label, kind, inputs=(), outputs=(), testonly=False, needs_cuda=False):
    """One rule as `bazel query --output=xml` prints it; inputs that are files are its sources."""
    lines = ['<rule class="%s" name="%s">' % (kind, label)]
    lines.append('<boolean name="testonly" value="%s"/>' % ("true" if testonly else "false"))
    files = [name for name in inputs if "." in name]
    lines.append('<list name="srcs">%s</list>' % "".join('<label value="%s"/>' % f for f in files))
    if needs_cuda:
        lines.append(
            '<list name="target_compatible_with">'
            '<label value="//third_party/cuda:needs_config_cuda"/></list>'
        )
    lines += ['<rule-input name="%s"/>' % name for name in inputs]
    lines += ['<rule-output name="%s"/>' % name for name in outputs]
    return "".join(lines) + "</rule>"


RULES = [
    rule("//server/update/rules:adam", "cc_library", ["//server/update/rules:adam.cc"]),
    rule("//server/update/rules:rules", "cc_library", ["//server/update/rules:adam"]),
    rule(
        "//tests/server/update:rule_cases",
        "cc_library",
        ["//tests/server/update:rule_cases.cc", "//server/update/rules:rules"],
        testonly=True,
    ),
    rule(
        "//tests/server/update:rule_bits_test",
        "cc_test",
        ["//tests/server/update:rule_bits_test.cc", "//tests/server/update:rule_cases"],
    ),
    rule(
        "//server/node:server",
        "cc_binary",
        ["//server/node:main.cc", "//server/update/rules:rules"],
    ),
    rule("//tests/integration:server_test", "cc_test", ["//server/node:server"]),
    rule("//common:clock", "cc_library", ["//common:clock.h"]),
    rule("//tests/common:clock_test", "cc_test", ["//tests/common:clock_test.cc", "//common:clock"]),
    rule(
        "//tests/testing:fake_clock",
        "cc_library",
        ["//tests/testing:fake_clock.h", "//common:clock"],
        testonly=True,
    ),
    rule("//tests/server/node:node_test", "cc_test", ["//tests/testing:fake_clock"]),
    rule("//common/cuda:event", "cc_library", ["//common/cuda:event.cc"], needs_cuda=True),
    rule("//tests/common:event_test", "cc_test", ["//common/cuda:event"], needs_cuda=True),
    rule("//proto:step_generated", "genrule", ["//proto:step.proto"], ["//proto:step.pb.cc"]),
    rule("//proto:step", "cc_library", ["//proto:step.pb.cc", "//proto:step_generated"]),
    rule("//tests/common:step_test", "cc_test", ["//proto:step"]),
    rule("//tests/layering:all_rules", "genquery", ["//common:clock", "//server/node:server"]),
    rule("//tests/layering:dependencies_test", "sh_test", ["//tests/layering:all_rules"]),
]
LAYERING = "//tests/layering:dependencies_test"


class AffectedTests(unittest.TestCase):
    def tests(self, *paths):
        graph = affected_tests.Graph(targets.parse("<query>%s</query>" % "".join(RULES)))
        return graph.tests(paths)

    def test_rule_has_tests_behind_groups_and_test_support(self):
        tests, unread = self.tests("server/update/rules/adam.cc")
        self.assertEqual(tests, [LAYERING, "//tests/server/update:rule_bits_test"])
        self.assertEqual(unread, [])

    def test_test_support_of_another_part_is_not_followed(self):
        tests, _ = self.tests("common/clock.h")
        self.assertEqual(tests, ["//tests/common:clock_test", LAYERING])

    def test_changed_test_support_has_the_tests_that_use_it(self):
        tests, _ = self.tests("tests/testing/fake_clock.h")
        self.assertEqual(tests, [LAYERING, "//tests/server/node:node_test"])

    def test_test_is_its_own_test(self):
        tests, _ = self.tests("tests/common/clock_test.cc")
        self.assertEqual(tests, ["//tests/common:clock_test", LAYERING])

    def test_program_without_tests_beside_it_has_those_that_run_it(self):
        tests, _ = self.tests("server/node/main.cc")
        self.assertEqual(tests, ["//tests/integration:server_test", LAYERING])

    def test_generated_sources_are_followed(self):
        tests, _ = self.tests("proto/step.proto")
        self.assertEqual(tests, ["//tests/common:step_test"])

    def test_changed_package_has_the_tests_of_all_its_targets(self):
        tests, _ = self.tests("common/BUILD.bazel")
        self.assertEqual(tests, ["//tests/common:clock_test", LAYERING])

    def test_file_that_no_target_reads_is_named(self):
        tests, unread = self.tests("docs/building.md")
        self.assertEqual(tests, [])
        self.assertEqual(unread, ["docs/building.md"])

    def test_test_that_needs_cuda_is_named_but_not_for_bazel(self):
        rules = targets.parse("<query>%s</query>" % "".join(RULES))
        with mock.patch.object(targets, "query_rules", lambda _: rules), contextlib.redirect_stdout(
            io.StringIO()
        ) as output, contextlib.redirect_stderr(io.StringIO()) as error:
            affected_tests.main(["common/cuda/event.cc", "common/clock.h"])
        self.assertEqual(output.getvalue().split(), ["//tests/common:clock_test", LAYERING])
        self.assertEqual(
            error.getvalue(), "only ./run test --config=cuda or --gpu runs //tests/common:event_test\n"
        )


if __name__ == "__main__":
    unittest.main()
