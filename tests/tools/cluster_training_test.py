"""./run cluster with trainers: hosts of several ranks each, with links between them."""

import os
import re
import subprocess
import tempfile
import unittest

from tests.testing.torchrun import torchrun
from tests.tools import network_namespaces

_CLUSTER = "tools/cluster.sh"
_TRAINER = os.path.realpath("examples/quickstart/trainer")
_LAUNCHER = os.path.realpath("tools/launcher/optshard-run")
_COORDINATOR = os.path.realpath("server/coordinator/optshard-coordinator")
_SERVER = os.path.realpath("server/node/optshard-server")
_DEMO = os.path.realpath("examples/optshard-train-digits")
_DIGITS = os.path.realpath("external/sklearn_digits/digits.csv.gz")
_CHECKPOINT = os.path.realpath("server/checkpoint/optshard-checkpoint")
_ROOT = os.path.dirname(os.path.realpath("WORKSPACE"))
_PATIENCE_S = 100
_PLACE = re.compile(r"\[host (\d+) rank \d+\] rank (\d+) step")


class ClusterTraining(network_namespaces.NetworkNamespaceTest):
    def run_cluster(self, *arguments):
        """What four ranks on two hosts wrote."""
        ran = subprocess.run([_CLUSTER, "--hosts=2", "--rate=1gbit", *arguments], capture_output=True,
                             text=True, check=False, timeout=_PATIENCE_S)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        return ran.stdout

    def assert_all_learn(self, written):
        for rank in range(4):
            losses = [float(loss) for loss in re.findall(r"rank %d step \d+ loss ([\d.]+)" % rank, written)]
            self.assertEqual(len(losses), 4, written)
            # A model that has learnt nothing has one of about 8.
            self.assertLess(losses[-1], 1, written)

    def test_ranks_of_two_hosts_learn_together(self):
        written = self.run_cluster("--ranks-per-host=2", "--", _TRAINER)
        places = {(int(host), int(rank)) for host, rank in _PLACE.findall(written)}
        self.assertEqual(sorted(places), [(0, 0), (0, 1), (1, 2), (1, 3)], written)
        self.assert_all_learn(written)

    def test_torchrun_on_each_host_starts_ranks_that_learn_together(self):
        written = self.run_cluster(
            "--ranks-per-host=1", "--", torchrun(_ROOT), "--nnodes=2", "--nproc-per-node=2",
            "--master-addr=192.0.2.1", "--master-port=29500", "--no-python", _TRAINER)
        self.assert_all_learn(written)

    def test_ranks_of_two_hosts_with_one_node_name_learn_and_are_told_of_it(self):
        written = self.run_cluster("--ranks-per-host=2", "--", "env", "OPTSHARD_NODE=twice", _TRAINER)
        self.assert_all_learn(written)
        self.assertIn("ranks 0, 1, 2, 3 have one node name and do not all share memory", written)

    def test_a_launcher_on_each_host_runs_the_demo_and_its_servers_save_checkpoints(self):
        with tempfile.TemporaryDirectory() as folder:
            checkpoints = os.path.join(folder, "digits")
            written = self.run_cluster(
                "--ranks-per-host=1", "--", _LAUNCHER, "-n", "2", "--job=digits",
                "--coordinator-binary=" + _COORDINATOR, "--server-binary=" + _SERVER,
                "--coordinator-options=--checkpoint-dir=%s --checkpoint-every=50" % checkpoints,
                "--", _DEMO, "--data=" + _DIGITS, "--epochs=30")
            self.assertIn("sharded over 4 ranks", written)
            self.assertIn("All bytes of the parameters are the same", written)
            verified = subprocess.run([_CHECKPOINT, "verify", checkpoints], capture_output=True,
                                      text=True, check=False, timeout=_PATIENCE_S)
            self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)
            self.assertRegex(verified.stdout, r"(?m)^step-\d+.*: whole$")


if __name__ == "__main__":
    unittest.main()
