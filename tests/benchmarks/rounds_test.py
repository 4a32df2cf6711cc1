"""Whole runs with fake contestants: what is measured, what is reported, and that nothing is left."""

import contextlib
import dataclasses
import io
import json
import os
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.getcwd(), "benchmarks"))

import run_bench
from harness import rounds
from harness.benchmark import Benchmark, Part, each_on_a_core
from harness.contestant import Contestant, ContestantError, Group, Service
from scaling import Scaling

FAKE = os.path.join(os.getcwd(), "tests", "benchmarks", "fake_contestant.py")


def fake(name, role, *behaviours):
    """One rank a behaviour."""
    commands = [[sys.executable, FAKE, *behaviour.split()] for behaviour in behaviours]
    return Contestant(name, name.title(), role, commands, same_result=True)


def alive(pid):
    """Whether a process runs; a zombie that its parent has not reaped does not."""
    try:
        with open("/proc/%d/stat" % pid, encoding="ascii") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends between open and read
        return False


def gone_soon(pid):
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.001)
    return not alive(pid)


class Runs(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        silence = contextlib.redirect_stderr(io.StringIO())
        self.stderr = silence.__enter__()
        self.addCleanup(silence.__exit__, None, None, None)

    def run_all(self, *contestants, setup_timeout_s=20, round_timeout_s=20):
        options = rounds.RunOptions(
            rounds=4, warm_up=1, setup_timeout_s=setup_timeout_s, round_timeout_s=round_timeout_s,
            log_directory=self.directory,
        )
        return rounds.run(list(contestants), options)

    def failure_of(self, *behaviours, round_timeout_s=20):
        contestants = [fake("ours", "ours", "good 2"), fake("peer", "peer", *behaviours)]
        result = self.run_all(*contestants, round_timeout_s=round_timeout_s)
        self.assertEqual(list(result.samples), ["ours"])
        self.assertEqual(len(result.samples["ours"]), 4)
        return result.failures["peer"]

    def test_GoodContestants_WarmUpIsNotCounted(self):
        result = self.run_all(fake("ours", "ours", "good 2"), fake("peer", "peer", "good 4"))
        self.assertEqual(result.samples, {"ours": [2.0] * 4, "peer": [4.0] * 4})
        self.assertEqual(result.details["peer"]["version"], "7")
        self.assertEqual(result.failures, {})

    def test_TwoRanks_TimeIsFirstStartToLastEnd(self):
        result = self.run_all(fake("ours", "ours", "good 2", "good 5"))
        self.assertEqual(result.samples["ours"], [5.0] * 4)

    def test_SeveralStepsInARound_TimeIsThatOfOne(self):
        five = dataclasses.replace(fake("ours", "ours", "good 20"), steps=5)
        self.assertEqual(self.run_all(five).samples["ours"], [4.0] * 4)

    def test_EachOnACore_RanksRunThere(self):
        core = max(os.sched_getaffinity(0))
        group = Group(each_on_a_core(fake("ours", "ours", "good 1", "good 1"), [core]), self.directory)
        self.addCleanup(group.end, 0)
        group.wait_ready(20)
        for pid in group.pids():
            self.assertEqual(os.sched_getaffinity(pid), {core})

    def test_Service_IsReadyBeforeTheRanksAndEndedWithThem(self):
        ready_file = os.path.join(self.directory, "ready")
        service = Service(["sh", "-c", 'sleep 600 & touch "$0"; wait', ready_file], ready_file)
        served = dataclasses.replace(fake("ours", "ours", "good 1"), services=[service])
        group = Group(served, self.directory)
        self.assertTrue(os.path.exists(ready_file))
        pids = group.pids()
        self.assertEqual(len(pids), 3)  # the shell, its sleep, the rank
        group.end(grace_s=0)
        self.assertTrue(all(map(gone_soon, pids)))

    def test_ServiceDies_IsReportedAndTheOthersGoOn(self):
        service = Service(["sh", "-c", "echo no luck today >&2; exit 3"], "/nowhere/ready")
        served = dataclasses.replace(fake("peer", "peer", "good 1"), services=[service])
        result = self.run_all(fake("ours", "ours", "good 2"), served)
        self.assertEqual(list(result.samples), ["ours"])
        self.assertIn("peer, service 0: ended with exit status 3: no luck today",
                      result.failures["peer"])

    def test_RankDies_StatusAndStderrAreReported(self):
        failure = self.failure_of("good 1", "dies")
        self.assertIn("peer, rank 1, setting up", failure)
        self.assertIn("ended with exit status 3: no luck today", failure)

    def test_RankSaysError_IsReported(self):
        self.assertIn("rank 0, setting up (20 s allowed): nobody at the door",
                      self.failure_of("error"))

    def test_NotJson_IsReported(self):
        self.assertIn("not JSON", self.failure_of("chatty"))

    def test_ProgramMissing_IsReported(self):
        missing = Contestant("peer", "Peer", "peer", [["/nowhere/program"]])
        self.assertIn("cannot start", self.run_all(missing).failures["peer"])

    def test_NeverReady_EndsAtTheDeadline(self):
        result = self.run_all(fake("peer", "peer", "silent"), setup_timeout_s=0.2)
        self.assertIn("setting up (0.2 s allowed): did not answer in time", result.failures["peer"])

    def test_HangsInARound_OthersGoOn(self):
        failure = self.failure_of("hangs_in_round 2", round_timeout_s=1)
        self.assertIn("rank 0, in a round (1 s allowed): did not answer in time", failure)

    def test_End_KillsTheWholeProcessGroup(self):
        group = Group(fake("peer", "peer", "child"), self.directory)
        group.wait_ready(20)
        child = group.detail["child"]
        self.assertTrue(alive(child))
        with self.assertRaises(ContestantError):
            group.run_round(0.01)
        group.end(grace_s=0)
        self.assertTrue(gone_soon(child))

    def test_Interrupted_EndsEveryContestant(self):
        started = []
        original = Group.wait_ready

        def remember(group, timeout_s):
            original(group, timeout_s)
            started.append(group.detail["child"])
            if len(started) == 2:
                raise KeyboardInterrupt

        Group.wait_ready = remember
        self.addCleanup(setattr, Group, "wait_ready", original)
        with self.assertRaises(KeyboardInterrupt):
            self.run_all(fake("a", "peer", "child"), fake("b", "peer", "child"))
        self.assertEqual(len(started), 2)
        self.assertTrue(all(map(gone_soon, started)))


class FakeBenchmark(Benchmark):
    name = "fake"
    title = "a fake benchmark"
    peers = ["good 4"]

    def contestants(self):
        peers = [fake("peer%d" % i, "peer", peer) for i, peer in enumerate(self.peers)]
        limit = fake("wire", "limit: transfer", "good 1")
        return [fake("ours", "ours", "good 2"), *peers, limit]


class FakeParts(FakeBenchmark):
    """Makes its parts one after the other, as some benchmarks do."""

    def parts(self):
        for name in ("fake_1", "fake_2", "fake_10"):
            yield Part(name, name, self.contestants())

    def finish(self, entries, out):
        return "finished %d" % len(entries)


class FakeScaling(Scaling):
    def _contestants(self, ranks):
        return [fake("ours", "ours", "good %d" % ranks)]


class RunBench(unittest.TestCase):
    def bench(self, peers, *arguments, benchmark=FakeBenchmark):
        FakeBenchmark.peers = peers
        saved = run_bench.BENCHMARKS
        run_bench.BENCHMARKS = {"fake": benchmark}
        self.addCleanup(setattr, run_bench, "BENCHMARKS", saved)
        with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()) as text:
            with contextlib.redirect_stderr(io.StringIO()):
                code = run_bench.main(["--rounds=3", "--warm_up=0", "--out=" + out, *arguments])
            with open(os.path.join(out, "bench.json"), encoding="utf-8") as file:
                entries = json.load(file)
            with open(os.path.join(out, "bench.md"), encoding="utf-8") as file:
                self.assertEqual(file.read(), text.getvalue()[:-1])
        return code, entries, text.getvalue()

    def test_Run_WritesJsonAndReport(self):
        code, [entry], text = self.bench(["good 4"])
        self.assertEqual(code, 0)
        self.assertEqual(
            [entry[key] for key in ("name", "ours_ms", "peer", "peer_ms", "ratio", "limit_ms", "unit")],
            ["fake", 2.0, "Peer0", 4.0, 0.5, 1.0, "ms"],
        )
        self.assertIn("ours / fastest peer = 0.500", text)
        self.assertIn("ours / limit = 2.000", text)

    def test_PeerFails_IsInTheReportAndTheExitStatus(self):
        code, [entry], text = self.bench(["good 4", "dies"])
        self.assertEqual(code, 1)
        self.assertEqual(entry["ratio"], 0.5)
        self.assertIn("no luck today", text)

    def test_EveryPeerFails_ThereIsNoRatio(self):
        code, [entry], text = self.bench(["dies"])
        self.assertEqual(code, 1)
        self.assertIsNone(entry["ratio"])
        self.assertIn("No ratio: every peer is missing", text)

    def test_PeersDisagreeOnTheResult_IsAProblem(self):
        code, [entry], _ = self.bench(["good 4 1.25"])
        self.assertEqual(code, 1)
        self.assertIn("peer0, rank 0: sum is 1.25", entry["problems"][0])

    def test_Parts_OnlyThoseThatMatchAreMeasured(self):
        code, entries, text = self.bench(["good 4"], "--parts=fake_1*", benchmark=FakeParts)
        self.assertEqual(code, 0)
        self.assertEqual([entry["name"] for entry in entries], ["fake_1", "fake_10"])
        self.assertIn("finished 2", text)

    def test_PartsThatNoneMatches_NamesThoseThatThereAre(self):
        with self.assertRaises(SystemExit) as exit_:
            self.bench(["good 4"], "--parts=fake_3", benchmark=FakeParts)
        self.assertEqual(str(exit_.exception), "no part matches fake_3; there are fake_1, fake_2, fake_10")

    def test_Only_HoldsInEveryPartAlsoWhereTheyAreMadeOneAfterTheOther(self):
        _, entries, _ = self.bench(["good 4", "good 3"], "--only=ours,peer0", benchmark=FakeParts)
        self.assertEqual([entry["name"] for entry in entries], ["fake_1", "fake_2", "fake_10"])
        for entry in entries:
            self.assertEqual([c["name"] for c in entry["contestants"]], ["ours", "peer0"])

    def test_SomePartsOfScaling_FiguresStandUnderTheirRanks(self):
        _, _, text = self.bench([], "--parts=scaling_[28]", benchmark=FakeScaling)
        row = next(line for line in text.splitlines() if line.startswith("| Ours") and "ours" not in line)
        self.assertEqual(row.replace(" ", ""), "|Ours|-|2.0|-|8.0|")

    def test_PeersOfOneName_RanksOfEachMeetInAPlaceOfTheirOwn(self):
        benchmark = Benchmark("bin", "python", 60)
        self.addCleanup(benchmark.close)
        places = []
        for _ in range(2):
            peer = benchmark.peer("peer", "Peer", "peer", "peer.py", [])
            flags = [flag for command in peer.commands for flag in command if "rendezvous" in flag]
            self.assertEqual(flags, 2 * flags[:1])
            places += flags[:1]
        self.assertNotEqual(*places)


class Order(unittest.TestCase):
    def test_Rounds_BeginWithDifferentContestantsAndRunAll(self):
        names = ["a", "b", "c"]
        orders = [rounds.order_of_round(names, number) for number in range(6)]
        self.assertEqual({tuple(sorted(order)) for order in orders}, {("a", "b", "c")})
        self.assertEqual({order[0] for order in orders}, set(names))
        after_a = {order[(order.index("a") + 1) % 3] for order in orders}
        self.assertEqual(after_a, {"b", "c"})
