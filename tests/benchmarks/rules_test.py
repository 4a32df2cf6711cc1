"""The parts of the entry "rules", and what the report says of a part that has no peer."""

import os
import re
import sys
import unittest

_ROOT = os.path.dirname(os.path.realpath("WORKSPACE"))
sys.path.insert(0, os.path.join(os.getcwd(), "benchmarks"))

from harness import report, summary
from harness.rounds import RunResult
from rules import Rules


def all_parts():
    benchmark = Rules("bin", "python", 60)
    try:
        return {part.name: part for part in benchmark.parts()}
    finally:
        benchmark.close()


def headline(part, samples):
    entry = summary.entry(part.name, part.title, part.contestants, RunResult(samples, {}, {}, {}))
    return report.render([entry], "a machine").split("\n\n")[3]


class Parts(unittest.TestCase):
    def test_EveryRuleOfTheProject_IsMeasuredOnOneThreadAndOnTwo(self):
        with open(os.path.join(_ROOT, "docs/rules.md"), encoding="utf-8") as page:
            rules = re.findall(r"^## (\w+)$", page.read(), re.MULTILINE)
        self.assertIn("lamb", rules)
        self.assertEqual(
            sorted(all_parts()),
            sorted("rules_%s_%d" % (rule, threads) for rule in rules for threads in (1, 2)),
        )

    def test_RuleThatTorchDoesNotHave_HasItsLimitAndNoPeer(self):
        roles = [c.role for c in all_parts()["rules_lion_1"].contestants]
        self.assertEqual(roles, ["ours", "limit: memory"])
        roles = [c.role for c in all_parts()["rules_lamb_1"].contestants]
        self.assertEqual(roles, ["ours"])

    def test_SparseAdam_OursAndTorchsHaveTheSameRowsAndTheLimitCountsNoOthers(self):
        part = all_parts()["rules_sparse_adam_1"]
        commands = {c.name: c.commands[0] for c in part.contestants}
        self.assertEqual(sorted(commands), ["loop", "memory", "ours"])
        self.assertIn("--sparse_every=4", commands["ours"])
        self.assertIn("--sparse_every=4", commands["loop"])
        elements = 10 * 2000 * 2000 // 4
        self.assertIn("--elements=%d" % elements, commands["memory"])


class Report(unittest.TestCase):
    def test_NoPeer_OursIsSaidBesideTheLimit(self):
        samples = {"ours": [20.0, 21.0, 22.0], "memory": [20.0, 20.0, 20.0]}
        self.assertEqual(
            headline(all_parts()["rules_lion_1"], samples),
            "**ours = 21.0 ms** (3 rounds); no peer took part.\n"
            "ours / limit = 1.050; the limit: memory bound, 20 bytes a parameter, 20.0 ms.",
        )

    def test_NeitherPeerNorLimit_OursIsSaid(self):
        self.assertEqual(
            headline(all_parts()["rules_lamb_1"], {"ours": [21.0]}),
            "**ours = 21.0 ms** (1 rounds); no peer took part.",
        )

    def test_EveryPeerFailed_IsSaid(self):
        self.assertEqual(
            headline(all_parts()["rules_adam_1"], {"ours": [21.0]}),
            "**No ratio: every peer is missing.**",
        )

    def test_OursFailed_IsSaid(self):
        self.assertEqual(
            headline(all_parts()["rules_lamb_1"], {}), "**No ratio: ours is missing.**"
        )


if __name__ == "__main__":
    unittest.main()
