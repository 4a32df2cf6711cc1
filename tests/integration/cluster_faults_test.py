"""./run cluster-faults in short: each kind of fault once, over four hosts."""

import os
import subprocess
import sys
import unittest

from tests.tools import network_namespaces

_CAMPAIGN = "tools/cluster_faults/campaign.py"
# The tool has a limit for everything that it waits for. With the minute in which it may end, this is less than
# the 300 s that bazel gives the test.
_PATIENCE_S = 210


class ClusterFaults(network_namespaces.NetworkNamespaceTest):
    def test_each_kind_of_fault_ends_with_the_same_bits_or_a_named_loss(self):
        out = os.environ.get("TEST_UNDECLARED_OUTPUTS_DIR", "out/cluster_faults")
        campaign = subprocess.Popen(
            [sys.executable, "-B", _CAMPAIGN, "--faults=12", "--hosts=4", "--steps=300", "--out=" + out,
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
        self.assertEqual(faults, 12, said)
        self.assertEqual(sum(ends), 12, said)
        self.assertEqual(ends[-1], 0, said)
        own = "optshard-%d-" % campaign.pid
        self.assertEqual([name for name in network_namespaces.names() if name.startswith(own)], [])


if __name__ == "__main__":
    unittest.main()
