"""./run cluster-faults in short: each kind of fault once, over four hosts."""

import os
import shutil
import subprocess
import sys
import unittest

_CAMPAIGN = "tools/cluster_faults/campaign.py"
# The tool has a limit for everything that it waits for. With the minute in which it may end, this is less than
# the 300 s that bazel gives the test.
_PATIENCE_S = 210


def _namespaces():
    listed = subprocess.run(["ip", "netns", "list"], check=True, stdout=subprocess.PIPE, text=True)
    return {line.split()[0] for line in listed.stdout.splitlines()}


class ClusterFaults(unittest.TestCase):
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

    def test_each_kind_of_fault_ends_with_the_same_bits_or_a_named_loss(self):
        out = os.environ.get("TEST_UNDECLARED_OUTPUTS_DIR", "out/cluster_faults")
        campaign = subprocess.Popen(
            [sys.executable, "-B", _CAMPAIGN, "--faults=11", "--hosts=4", "--steps=300", "--out=" + out,
             "--coordinator-binary=server/coordinator/optshard-coordinator",
             "--server-binary=server/node/optshard-server",
             "--trainer-binary=tests/testing/test-trainer"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            said, _ = campaign.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            campaign.terminate()
            said, _ = campaign.communicate(timeout=60)
        self.assertEqual(campaign.returncode, 0, said)
        print(said)
        all_faults = [line for line in said.splitlines() if line.startswith("| all")]
        self.assertEqual(len(all_faults), 1, said)
        # The last one of these columns is FAILED.
        faults, *ends = [int(cell) for cell in all_faults[0].split("|")[2:8]]
        self.assertEqual(faults, 11, said)
        self.assertEqual(sum(ends), 11, said)
        self.assertEqual(ends[-1], 0, said)
        own = "optshard-%d-" % campaign.pid
        self.assertEqual([name for name in _namespaces() if name.startswith(own)], [])


if __name__ == "__main__":
    unittest.main()
