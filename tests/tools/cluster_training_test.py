"""./run cluster with trainers: hosts of several ranks each, with links between them."""

import os
import re
import shutil
import subprocess
import unittest

_CLUSTER = "tools/cluster.sh"
_TRAINER = os.path.realpath("examples/quickstart/trainer")
_PATIENCE_S = 100
_LINE = re.compile(r"\[host (\d+) rank (\d+)\] rank (\d+) step (\d+) loss (\d+\.\d+)")


class ClusterTraining(unittest.TestCase):
    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("only root can make network namespaces")
        if shutil.which("ip") is None:
            self.skipTest("there is no ip (Debian's package iproute2)")
        probe = "optshard-probe-%d" % os.getpid()
        made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False)
        if made.returncode != 0:
            self.skipTest("no network namespace: %s" % made.stderr.decode().strip())
        subprocess.run(["ip", "netns", "delete", probe], check=True)

    def losses(self, *arguments):
        """{(host, rank): [loss every 50 steps]} of the quickstart's trainer."""
        ran = subprocess.run(
            [_CLUSTER, *arguments, "--", _TRAINER], capture_output=True, text=True, check=False,
            timeout=_PATIENCE_S)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        losses = {}
        for host, rank, own, _, loss in _LINE.findall(ran.stdout):
            self.assertEqual(rank, own)
            losses.setdefault((int(host), int(rank)), []).append(float(loss))
        return losses

    def test_ranks_of_two_hosts_learn_together(self):
        losses = self.losses("--hosts=2", "--ranks-per-host=2", "--rate=1gbit")
        self.assertEqual(sorted(losses), [(0, 0), (0, 1), (1, 2), (1, 3)])
        for rank, of_rank in losses.items():
            self.assertEqual(len(of_rank), 4, rank)
            self.assertLess(of_rank[-1], 0.5 * of_rank[0], rank)


if __name__ == "__main__":
    unittest.main()
