"""Medians, spread, ratios and limits, from samples with answers known by hand."""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.getcwd(), "benchmarks"))

from harness import summary
from harness.contestant import Contestant
from harness.rounds import RunResult


def contestant(name, role, same_result=False):
    return Contestant(name, name.title(), role, [], same_result=same_result)


ALL = [
    contestant("ours", "ours", True),
    contestant("slow", "peer", True),
    contestant("quick", "peer", True),
    contestant("alone", "reference"),
    contestant("wire", "limit: transfer"),
    contestant("wire2", "limit: transfer"),
    contestant("memory", "limit: memory"),
]

SAMPLES = {
    "ours": [10.0, 22.0, 12.0],
    "slow": [40.0, 40.0, 40.0],
    "quick": [20.0, 20.0, 10.0],
    "alone": [1.0, 1.0, 1.0],
    "wire": [9.0, 9.0, 9.0],
    "wire2": [8.0, 5.0, 8.0],
    "memory": [6.0, 6.0, 60.0],
}


def entry(samples, checks=None, failures=None, limits_add_up=False):
    result = RunResult(samples, checks or {}, {}, failures or {})
    return summary.entry("step", "a step", ALL, result, limits_add_up=limits_add_up)


class Spread(unittest.TestCase):
    def test_OddCount_QuartilesAreValues(self):
        self.assertEqual(
            summary.spread([5.0, 1.0, 4.0, 2.0, 3.0]),
            {"min": 1.0, "q1": 2.0, "median": 3.0, "q3": 4.0, "max": 5.0},
        )

    def test_OneValue_IsAllOfThem(self):
        self.assertEqual(set(summary.spread([7.0]).values()), {7.0})


class Entry(unittest.TestCase):
    def test_Ratio_IsTheMedianOfTheRoundsRatios(self):
        # Ratios by round 0.5, 1.1, 1.2; the ratio of the medians would be 0.6.
        made = entry(SAMPLES)
        self.assertAlmostEqual(made["ratio"], 1.1)
        self.assertEqual(made["ours_ms"], 12.0)
        self.assertEqual(made["peer_ms"], 20.0)
        self.assertAlmostEqual(made["spread"]["ratio"]["min"], 0.5)
        self.assertAlmostEqual(made["spread"]["ratio"]["max"], 1.2)

    def test_Peer_IsTheOneWithTheLowestMedian(self):
        self.assertEqual(entry(SAMPLES)["peer"], "Quick")

    def test_Limit_IsTheSlowestLimitByItsFastestContestant(self):
        # transfer: wire2 with 8; memory: 6, its outlier notwithstanding.
        made = entry(SAMPLES)
        self.assertEqual((made["limit"], made["limit_ms"]), ("Wire2", 8.0))
        self.assertAlmostEqual(made["ratio_to_limit"], 1.5)

    def test_LimitsAddUp_RoundByRoundEachByItsFastest(self):
        # transfer 8, 5, 8 plus memory 6, 6, 60.
        made = entry(SAMPLES, limits_add_up=True)
        self.assertEqual((made["limit"], made["limit_ms"]), ("Memory plus Wire2", 14.0))
        self.assertAlmostEqual(made["spread"]["ratio_to_limit"]["max"], 2.0)

    def test_LimitsAddUpAndOneIsMissing_ThereIsNoLimit(self):
        samples = {name: values for name, values in SAMPLES.items() if name != "memory"}
        self.assertIsNone(entry(samples, limits_add_up=True)["limit_ms"])

    def test_EveryContestant_IsListedWithItsSamples(self):
        listed = {figures["name"]: figures for figures in entry(SAMPLES)["contestants"]}
        self.assertEqual(list(listed), [c.name for c in ALL])
        self.assertEqual(listed["slow"]["samples_ms"], SAMPLES["slow"])
        self.assertAlmostEqual(listed["slow"]["ratio"]["median"], 0.3)

    def test_FailedPeer_IsAProblemAndNotThePeer(self):
        samples = {name: values for name, values in SAMPLES.items() if name != "quick"}
        made = entry(samples, failures={"quick": "quick, rank 1: gone"})
        self.assertEqual(made["peer"], "Slow")
        self.assertEqual(made["problems"], ["quick, rank 1: gone"])

    def test_OursMissing_LeavesNoRatio(self):
        samples = {name: values for name, values in SAMPLES.items() if name != "ours"}
        made = entry(samples, failures={"ours": "ours: cannot start"})
        self.assertIsNone(made["ratio"])
        self.assertIsNone(made["ours_ms"])
        self.assertEqual(made["peer_ms"], 20.0)

    def test_NothingRan_IsAnEntryOfProblems(self):
        made = entry({}, failures={"ours": "no"})
        self.assertEqual(made["rounds"], 0)
        self.assertIsNone(made["limit_ms"])
        self.assertEqual(made["problems"], ["no"])


class Results(unittest.TestCase):
    def test_EqualUpToRounding_IsNoProblem(self):
        checks = {"ours": [{"sum": 1.0}, {"sum": 1.0}], "quick": [{"sum": 1.0 + 1e-9}] * 2}
        self.assertEqual(entry(SAMPLES, checks)["problems"], [])

    def test_OneRankDiffers_NamesContestantRankAndValues(self):
        checks = {"ours": [{"sum": 1.0}, {"sum": 1.5}], "quick": [{"sum": 1.0}] * 2}
        [problem] = entry(SAMPLES, checks)["problems"]
        self.assertIn("ours, rank 1: sum is 1.5, but 1.0", problem)

    def test_PeerDiffers_IsAProblem(self):
        checks = {"ours": [{"sum": 1.0}] * 2, "quick": [{"sum": 1.1}] * 2}
        self.assertEqual(len(entry(SAMPLES, checks)["problems"]), 2)
