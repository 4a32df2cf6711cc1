"""grpc_cli against a shard server whose ranks train."""

import json
import math
import os
import re
import subprocess
import tempfile
import time
import unittest

_COORDINATOR = "server/coordinator/optshard-coordinator"
_SERVER = "server/node/optshard-server"
_TRAINER = "tests/server/node/node_trainer"
_GRPC_CLI = "external/grpc_cli/grpc_cli"

# Slow machines under sanitizers; no test waits as long as that when things work.
_PATIENCE_S = 60
_RANKS = 2
_STEPS = 3


class GrpcCli(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls._folder = tempfile.TemporaryDirectory()
        cls._processes = []
        try:
            cls._coordinator, cls._address, trainers = cls._start_job(range(_RANKS), _STEPS)
            for trainer in trainers:
                line = trainer.stdout.readline()
                if line != "stepped\n":
                    raise RuntimeError("a trainer says " + repr(line))
        except Exception:
            cls.tearDownClass()
            raise

    @classmethod
    def tearDownClass(cls):
        for process in reversed(cls._processes):
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
        cls._folder.cleanup()

    @classmethod
    def _start(cls, *command):
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        cls._processes.append(process)
        return process

    @classmethod
    def _start_job(cls, ranks, steps, *options):
        """Of _RANKS ranks, of which these have trainers: the addresses of the coordinator and of the
        shard owners, and the trainers."""
        coordinator = cls._start_with_port(_COORDINATOR, "--world-size=%d" % _RANKS, "--job=test")
        socket = os.path.join(cls._folder.name, "socket%d" % len(cls._processes))
        owners = cls._start_with_port(
            _SERVER,
            "--node-ranks=0-%d" % (_RANKS - 1),
            "--coordinator=" + coordinator,
            "--socket=" + socket,
            "--job=test",
        )
        trainers = [
            cls._start(_TRAINER, socket, str(rank), str(_RANKS), str(steps), *options)
            for rank in ranks
        ]
        return coordinator, owners, trainers

    @classmethod
    def _start_with_port(cls, program, *flags):
        port_file = os.path.join(cls._folder.name, "port%d" % len(cls._processes))
        process = cls._start(program, "--port-file=" + port_file, *flags)
        deadline = time.monotonic() + _PATIENCE_S
        while not os.path.exists(port_file):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(program + " does not start")
            time.sleep(0.01)
        with open(port_file, encoding="ascii") as port:
            return "127.0.0.1:%d" % int(port.read())

    def _run(self, *arguments):
        return subprocess.run(
            [_GRPC_CLI, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PATIENCE_S,
            # A proxy of the environment is not for the loopback.
            env={**os.environ, "no_grpc_proxy": "127.0.0.1"},
        )

    def _call(self, method, request):
        result = self._run("call", self._address, "optshard.v1.ShardOwner." + method, request)
        self.assertEqual(result.returncode, 0, result.stdout)
        return result.stdout

    def _ask_job(self, method, request, coordinator=None):
        """A call of the whole job: with the coordinator's address alone."""
        result = self._run(
            "call",
            coordinator or self._coordinator,
            "optshard.v1.JobInspection." + method,
            request,
        )
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertNotIn("unanswered", result.stdout)
        return result.stdout

    def _ask_until(self, coordinator, method, request, pattern):
        """Asks again until an answer has the pattern, whose match it returns."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            answer = self._run(
                "call", coordinator, "optshard.v1.JobInspection." + method, request
            ).stdout
            found = re.search(pattern, answer)
            if found:
                return found
            self.assertLess(time.monotonic(), deadline, answer)

    def _ask_checkpoints(self, method, request):
        result = self._run(
            "call", self._coordinator, "optshard.v1.Checkpoints." + method, request
        )
        self.assertEqual(result.returncode, 0, result.stdout)
        return result.stdout

    def test_Job_EveryRankIsSummarised(self):
        job = self._ask_job("DescribeJob", "")
        self.assertIn('summary: "job test, optimizer default active: 2 ranks, step', job)
        for rank in range(_RANKS):
            self.assertRegex(
                job,
                r'summary: "rank %d active: finished step 3, idle for [0-9.]+ (us|ms|s) '
                r'\(its trainer computes\); owns \d+ of \d+ parameters, .*B of state"' % rank,
            )
        self.assertEqual(job.count("phase: RANK_PHASE_IDLE"), _RANKS)
        self.assertRegex(job, r'summary: "parameters a rank: .* to .*, the largest [0-9.]+ of the mean"')
        self.assertRegex(job, r'summary: "state a rank: .* to .*, the largest [0-9.]+ of the mean"')

    def test_Forming_EachRankIsNamed(self):
        coordinator, _, _ = self._start_job([0], _STEPS)
        self._ask_until(coordinator, "DescribeJob", "", r'summary: "rank 0 joined')
        job = self._ask_job("DescribeJob", "", coordinator)
        self.assertIn("default forming: 1 of 2 ranks joined, waiting for rank 1", job)
        self.assertIn('summary: "rank 1 missing"', job)
        self.assertRegex(job, r'owner_address: "127.0.0.1:\d+"\n  state: "joined"')

    def test_WhileRanksStep_StepsAndValuesThatAreNotFiniteAreSaid(self):
        # The masters of 16-bit parameters leave the range within a few steps.
        coordinator, _, _ = self._start_job(range(_RANKS), 1 << 30, "1e38")
        pattern = r'summary: "rank 0 active: (?:in|finished) step (\d+)'
        first = int(self._ask_until(coordinator, "DescribeJob", "", pattern).group(1))
        statistics = self._ask_until(
            coordinator,
            "GetStatistics",
            "slot: 'master' page_size: 100",
            r'summary: "master float32: .* (\d+) of (\d+) values \(.* %\) not finite; ',
        )
        self.assertLessEqual(int(statistics.group(1)), int(statistics.group(2)))
        last = int(self._ask_until(coordinator, "DescribeJob", "", pattern).group(1))
        self.assertGreater(last, first)

    def test_Checkpoint_IsSavedAndListed_AndTheModelExported(self):
        directory = os.path.join(self._folder.name, "checkpoints")
        saved = self._ask_checkpoints("SaveCheckpoint", "directory: '%s'" % directory)
        self.assertIn("phase: SAVE_PHASE_", saved)
        self.assertIn('committed: true\nname: "step-000000000003"', saved)
        listed = self._ask_checkpoints("ListCheckpoints", "directory: '%s'" % directory)
        self.assertRegex(
            listed, r'summary: "step-000000000003 +committed +test/default +2 ranks +\S+ .*B '
        )
        model = os.path.join(self._folder.name, "model")
        exported = self._ask_checkpoints("ExportModel", "directory: '%s'" % model)
        self.assertIn("committed: true", exported)
        self.assertEqual(os.listdir(model), ["model.safetensors"])
        result = self._run(
            "call",
            self._coordinator,
            "optshard.v1.Checkpoints.ExportModel",
            "directory: '%s'" % model,
        )
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(model, result.stdout)

    def test_JobsParameters_ComeInPagesAndByName(self):
        page = self._ask_job("ListParameters", "")
        names = re.findall(r"\n  name: \"(.*)\"", page)
        self.assertGreater(len(names), 4)
        summaries = re.findall(r'summary: "\d+ .* step \d+, .*, ranks? [0-9, ]+: ', page)
        self.assertEqual(len(summaries), len(names), page)
        first = self._ask_job("ListParameters", "page_size: 2")
        token = re.search(r'next_page_token: "(.*)"', first).group(1)
        second = self._ask_job("ListParameters", "page_size: 2 page_token: '%s'" % token)
        paged = re.findall(r"\n  name: \"(.*)\"", first + second)
        self.assertEqual(paged, names[:4])
        prefix = names[0].split(".")[0]
        matching = self._ask_job("ListParameters", "name: '%s.*'" % prefix)
        self.assertEqual(
            re.findall(r"\n  name: \"(.*)\"", matching),
            [name for name in names if name.startswith(prefix + ".")],
        )

    def test_Statistics_OfEverySlot_AreThoseOfItsValues(self):
        page = self._ask_job("GetStatistics", "page_size: 100")
        slots = 0
        for block in page.split("parameters {")[1:]:
            parameter = int(re.search(r"parameter: (\d+)|$", block).group(1) or 0)
            for slot in re.findall(r'\n    slot: "(.*)"', block):
                statistics = re.search(
                    r'summary: "%s \S+: norm (\S+), mean (\S+), min (\S+), max (\S+), \S+ %% zeros, '
                    r'all finite; step 3"' % slot,
                    block,
                )
                self.assertIsNotNone(statistics, block)
                norm, mean, least, most = (float(text) for text in statistics.groups())
                counted = re.search(r'slot: "%s"\n.*\n    elements: (\d+)|$' % slot, block)
                elements = int(counted.group(1) or 0)
                if elements > 1 << 16 or elements == 0:
                    continue
                read = self._ask_job(
                    "ReadValues",
                    "parameter: %d slot: '%s' elements: %d" % (parameter, slot, elements),
                )
                values = [float(text) for text in re.findall(r"values: (\S+)", read)]
                self.assertEqual(len(values), elements)
                spread = max(abs(value) for value in values)
                for told, expected in (
                    (norm, math.sqrt(math.fsum(value * value for value in values))),
                    (least, min(values)),
                    (most, max(values)),
                    (mean, math.fsum(values) / elements),
                ):
                    # Six digits are printed.
                    largest = max(abs(expected), spread)
                    self.assertAlmostEqual(told, expected, delta=1e-5 * largest + 1e-30)
                slots += 1
        self.assertGreater(slots, 8, page)

    def test_Groups_HaveTheirHyperparameters(self):
        groups = self._ask_job("ListGroups", "")
        self.assertIn('summary: "optimizer default has 2 groups; this page has 2, the last ones;', groups)
        self.assertRegex(groups, r'rule: "adam"\n  hyperparameters: "amsgrad=')
        self.assertRegex(groups, r'rule: "lion"\n  hyperparameters: "betas=')

    def test_LastSteps_AreATable(self):
        table = self._ask_job("ListSteps", "")
        rows = re.findall(r'table: "(.*)"', table)
        self.assertEqual(rows[0].split()[:4], ["step", "rank", "prepare", "commit"])
        self.assertEqual(len({len(row) for row in rows}), 1, table)
        steps = [row.split()[:2] for row in rows[1:]]
        expected = [[str(step), str(rank)] for step in range(1, _STEPS + 1) for rank in range(_RANKS)]
        self.assertEqual(steps, expected)

    def test_ErrorsOfTheJob_SayWhatThereIs(self):
        result = self._run(
            "call", self._coordinator, "optshard.v1.JobInspection.DescribeJob", "optimizer: 'critic'"
        )
        self.assertNotEqual(result.returncode, 0)
        self.assertIn('it has: "default"', result.stdout)

    def test_Services_InspectionHealthAndReflection_AreAtOnePort(self):
        services = self._run("ls", self._address).stdout.split()
        self.assertEqual(
            sorted(services),
            [
                "grpc.health.v1.Health",
                "grpc.reflection.v1alpha.ServerReflection",
                "optshard.v1.ShardInspection",
                "optshard.v1.ShardOwner",
                "optshard.v1.ShardSaving",
            ],
        )

    def test_Describe_EachRank_IsSummarised(self):
        for rank in range(_RANKS):
            shard = self._call("DescribeShard", "rank: %d" % rank)
            self.assertRegex(
                shard, r'summary: "rank %d of 2 of test/default: adam\+lion, .* step 3 idle"' % rank
            )
            self.assertIn('rule: "adam"\n  hyperparameters: "amsgrad=', shard)
            self.assertIn('group: 1\n  rule: "lion"\n  hyperparameters: "betas=', shard)
            self.assertIn("outcome: STEP_OUTCOME_IDLE", shard)

    def test_Describe_WithoutARank_ListsThem(self):
        result = self._run("call", self._address, "optshard.v1.ShardOwner.DescribeShard", "")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("set `rank` to one of: 0, 1", result.stdout)

    def test_EveryListedSlot_CanBeRead(self):
        page = self._call("ListParameters", "rank: 1")
        summaries = re.findall(r'summary: "(\d+) (\S+) (\S+) \[(.*)\] step 3: (.*) \(', page)
        dtypes = {dtype for _, _, dtype, _, _ in summaries}
        self.assertGreater(len(dtypes), 2, page)
        rules = set()
        for parameter, name, dtype, shape, slots in summaries:
            if "0" in shape.split(", "):
                continue
            master = "master, " if dtype in ("bfloat16", "float16") else ""
            # The second group, whose rule is lion.
            is_lion = name.startswith(("head.", "tail."))
            rules.add("lion" if is_lion else "adam")
            expected = "exp_avg, " + master if is_lion else "exp_avg, exp_avg_sq, " + master + "step, "
            self.assertEqual(slots + ", ", expected)
            for slot in slots.split(", "):
                request = "rank: 1 parameter: %s slot: '%s'" % (parameter, slot)
                is_float64 = dtype == "float64" and slot != "step"
                values = "float64_values: " if is_float64 else "\nvalues: "
                self.assertIn(values, self._call("ReadSlot", request))
        self.assertEqual(rules, {"adam", "lion"}, page)

    def test_Pages_AreJoinedByTheirTokens(self):
        first = self._call("ListParameters", "rank: 0 page_size: 1")
        self.assertEqual(first.count("parameters {"), 1)
        token = re.search(r'next_page_token: "(.*)"', first).group(1)
        second = self._call("ListParameters", "rank: 0 page_size: 1 page_token: '%s'" % token)
        self.assertEqual(second.count("parameters {"), 1)
        self.assertNotEqual(first, second)

    def test_Timeline_IsJson(self):
        text = self._call("GetTimeline", "rank: 0")
        pieces = re.findall(r'json: "(.*)"', text)
        trace = json.loads("".join(pieces).encode().decode("unicode_escape"))
        self.assertTrue(trace["traceEvents"])


if __name__ == "__main__":
    unittest.main()
