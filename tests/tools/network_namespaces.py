"""For tests that make hosts out of network namespaces."""

import os
import shutil
import subprocess
import unittest


def names():
    listed = subprocess.run(["ip", "netns", "list"], check=True, stdout=subprocess.PIPE, text=True)
    return {line.split()[0] for line in listed.stdout.splitlines()}


class NetworkNamespaceTest(unittest.TestCase):
    """Skips its cases, with the reason, where no network namespace can be made."""

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
