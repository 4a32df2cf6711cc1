"""optshard-run with trainers that train."""

import os
import re
import signal
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.getcwd(), "tests", "tools", "launcher"))

from launched import PATIENCE_S, QUICKSTART, Launched, environment, wait_until  # noqa: E402

from tests.testing.master_port import free_master_port  # noqa: E402

_TRAINER = "tests/tools/launcher/launched-trainer"
_FOR_EVER = "--steps=1000000000"


def _free_port():
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


class Training(unittest.TestCase):
    def _output(self, *words, **variables):
        with Launched(*words, **variables) as job:
            self.assertEqual(job.wait(), 0, job.stdout + job.stderr)
            self.assertEqual(job.living(), [])
            self.assertEqual(job.left_files(), [])
            return job.stdout

    def assertLosses(self, output, ranks):
        for rank in ranks:
            line = r"(?m)^(?:\[rank %d\] )?rank %d step \d+ loss ([\d.]+)$" % (rank, rank)
            losses = [float(loss) for loss in re.findall(line, output)]
            self.assertEqual(len(losses), 4, output)
            # A model that has learnt nothing has one of about 8.
            self.assertLess(losses[-1], 1, output)

    def test_Quickstart_WithAndWithoutServer_Trains(self):
        for options in ((), ("--no-server",)):
            with self.subTest(options=options):
                self.assertLosses(self._output("-n", "2", *options, "--", QUICKSTART), range(2))

    def test_Quickstart_TwoNodes_TrainTogether(self):
        words = ("-n", "1", "--nnodes=2", "--coordinator=127.0.0.1:%d" % _free_port())
        # The second node's launcher comes first, and waits.
        with Launched(*words, "--node-rank=1", "--", QUICKSTART, OPTSHARD_PLANE="gloo") as second:
            with Launched(*words, "--node-rank=0", "--", QUICKSTART, OPTSHARD_PLANE="gloo") as first:
                for rank, job in enumerate((first, second)):
                    self.assertEqual(job.wait(), 0, first.stderr + second.stderr)
                    self.assertLosses(job.stdout, (rank,))
                    self.assertEqual(job.living(), [])
                    self.assertEqual(job.left_files(), [])

    def test_TwoNodes_OneTrainerFails_BothEnd(self):
        words = ("-n", "1", "--nnodes=2", "--coordinator=127.0.0.1:%d" % _free_port())
        trainer = ("--", _TRAINER, "--die_at=5", "--step_timeout_s=3")
        with Launched(*words, "--node-rank=0", *trainer) as first:
            with Launched(*words, "--node-rank=1", *trainer) as second:
                self.assertEqual(second.wait(), 137, second.stderr)
                self.assertNotEqual(first.wait(), 0, first.stderr)
                self.assertRegex(first.stderr, r"optshard-run: rank 0 \(process \d+\) failed with exit code 1")

    def test_Trainer_IsKilled_ItsSuccessorGoesOn_WithTheSameBits(self):
        undisturbed = self._output("-n", "2", "--", _TRAINER)
        replaced = self._output("-n", "2", "--max-restarts=1", "--", _TRAINER, "--die_at=15")
        self.assertIn("[rank 1] begins at step 15\n", replaced)
        self.assertEqual(undisturbed.count("begins at step 1\n"), 2)
        checksums = set(re.findall(r"checksum (\S+)", undisturbed + replaced))
        self.assertEqual(len(checksums), 1, undisturbed + replaced)
        self.assertEqual((undisturbed + replaced).count("checksum"), 4)

    def test_Trainer_IsKilledFromOutside_ItsSuccessorGoesOn(self):
        with Launched("-n", "2", "--max-restarts=1", "--", _TRAINER, _FOR_EVER) as job:
            job.wait_for("has done a step\n", 2)
            os.kill(max(job.living("launched-trai")), signal.SIGKILL)
            job.wait_for("begins at step ", 3)
            begun = re.findall(r"begins at step (\d+)", job.stdout)
            self.assertGreater(int(begun[-1]), 1, job.stdout)
            job.process.send_signal(signal.SIGINT)
            self.assertEqual(job.wait(), 130, job.stderr)
            self.assertEqual(job.living(), [])

    def test_CtrlC_WhileItTrains_LeavesNothing(self):
        with Launched("-n", "2", "--", _TRAINER, _FOR_EVER) as job:
            job.wait_for("begins", 2)
            job.process.send_signal(signal.SIGINT)
            self.assertEqual(job.wait(), 130, job.stderr)
            self.assertNotIn("did not end in time", job.stderr)
            self.assertEqual(job.living(), [])
            self.assertEqual(job.left_files(), [])

    def test_LauncherIsKilled_WhileItTrains_LeavesNothing(self):
        with Launched("-n", "2", "--", _TRAINER, _FOR_EVER) as job:
            job.wait_for("begins", 2)
            job.process.kill()
            job.wait()
            wait_until(lambda: not job.living(), "no process %s" % job.living())
            wait_until(lambda: not job.left_files(), "no file %s" % job.left_files())

    def test_Server_HasNotEnoughMemory_TheRefusalIsShown(self):
        words = ("-n", "2", "--server-options=--memory-limit=1KiB", "--", QUICKSTART)
        with Launched(*words) as job:
            self.assertEqual(job.wait(), 1, job.stderr)
            self.assertIn("RESOURCE_EXHAUSTED", job.stderr)
            self.assertRegex(job.stderr, r"rank \d \(process \d+\) failed with exit code 1; the exit code is 1\n$")

    def test_Quickstart_StartedBySrunsAndMpirunsVariables_Trains(self):
        for rank_variable, size_variable in (
            ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            ("PMI_RANK", "PMI_SIZE"),
        ):
            with self.subTest(variable=rank_variable):
                master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_master_port())}
                ranks = [
                    subprocess.Popen(
                        [QUICKSTART],
                        env=environment(**{rank_variable: str(rank), size_variable: "2"}, **master),
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                        text=True,
                    )
                    for rank in range(2)
                ]
                for rank, process in enumerate(ranks):
                    output, _ = process.communicate(timeout=PATIENCE_S)
                    self.assertEqual(process.returncode, 0, output)
                    self.assertLosses(output, (rank,))


if __name__ == "__main__":
    unittest.main()
