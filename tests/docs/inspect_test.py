"""That docs/inspect.md lists the services that a coordinator has."""

import os
import re
import subprocess
import tempfile
import time
import unittest

_COORDINATOR = "server/coordinator/optshard-coordinator"
_GRPC_CLI = "external/grpc_cli/grpc_cli"
_PATIENCE_S = 60
_ROOT = os.path.dirname(os.path.realpath("WORKSPACE"))


def _listed():
    """What the document shows below `grpc_cli ls`."""
    with open(os.path.join(_ROOT, "docs/inspect.md"), encoding="utf-8") as file:
        shown = re.search(r"(?ms)^\$ grpc_cli ls \S+\n(.*?)^```$", file.read())
    return shown.group(1).splitlines()


class Services(unittest.TestCase):
    def _served(self, port_file):
        deadline = time.monotonic() + _PATIENCE_S
        while not os.path.exists(port_file):
            self.assertLess(time.monotonic(), deadline, "no port file")
            time.sleep(0.01)
        with open(port_file, encoding="ascii") as port:
            address = "127.0.0.1:%d" % int(port.read())
        listing = subprocess.run(
            [_GRPC_CLI, "ls", address],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=_PATIENCE_S,
            # A proxy of the environment is not for the loopback.
            env={**os.environ, "no_grpc_proxy": "127.0.0.1"},
        )
        return listing.stdout.splitlines()

    def test_Listed_AreThoseOfTheCoordinator(self):
        with tempfile.TemporaryDirectory() as folder:
            port_file = os.path.join(folder, "port")
            coordinator = subprocess.Popen(
                [_COORDINATOR, "--world-size=1", "--port-file=" + port_file]
            )
            try:
                self.assertEqual(_listed(), self._served(port_file))
            finally:
                coordinator.kill()
                coordinator.wait()


if __name__ == "__main__":
    unittest.main()
