"""That docs/quickstart.md works as it stands: its files are those of examples/quickstart, its commands run."""

import os
import re
import signal
import subprocess
import tempfile
import unittest

from tests.testing.master_port import free_master_port
from tests.testing.torchrun import torchrun

_PATIENCE_S = 120
_ROOT = os.path.dirname(os.path.realpath("WORKSPACE"))


def _read(path):
    with open(os.path.join(_ROOT, path), encoding="utf-8") as file:
        return file.read()


def _blocks(language):
    return re.findall(r"(?ms)^```%s\n(.*?)^```$" % language, _read("docs/quickstart.md"))


class Files(unittest.TestCase):
    def test_Shown_AreThoseOfTheExample(self):
        self.assertEqual(_blocks("cpp"), [_read("examples/quickstart/trainer.cc")])
        self.assertEqual(_blocks("python"), [_read("examples/quickstart/BUILD.bazel")])


class Commands(unittest.TestCase):
    def _run(self, script):
        """Output of a block, with programs, ports and paths of this test's own."""
        with tempfile.TemporaryDirectory() as folder:
            for shown, ours in (
                ("bazel-bin/", ""),
                ("bin/optshard-coordinator", "server/coordinator/optshard-coordinator"),
                ("bin/optshard-server", "server/node/optshard-server"),
                ("$PWD/", folder + "/"),
            ):
                script = script.replace(shown, ours)
            # In one pass: a port of ours may contain the other one's digits.
            ports = {"29500": str(free_master_port()), "4700": str(free_master_port())}
            script = re.sub(r"\b(29500|4700)\b", lambda port: ports[port.group()], script)
            shell = subprocess.Popen(
                ["bash", "-eu", "-c", script],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            try:
                output, _ = shell.communicate(timeout=_PATIENCE_S)
            finally:
                try:
                    os.killpg(shell.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.assertEqual(shell.returncode, 0, output)
        return output

    def assertLosses(self, output, ranks):
        for rank in range(ranks):
            losses = re.findall(r"(?m)^rank %d step \d+ loss ([\d.]+)$" % rank, output)
            self.assertEqual(len(losses), 4, output)
            # A model that has learnt nothing has one of about 8.
            self.assertLess(float(losses[-1]), 1, output)

    def test_EveryBlock_Runs_AllRanksTrain(self):
        scripts = _blocks("sh")
        self.assertEqual(len(scripts), 4)
        # The last one runs the trainer twice, the second time from its last checkpoint.
        for script, ranks in zip(scripts, (2, 1, 2, 1)):
            with self.subTest(script=script):
                self.assertLosses(self._run(script), ranks)

    def test_Torchrun_AsShown_AllRanksTrain(self):
        [shown] = re.findall(r"(?m)^    (torchrun .*)$", _read("docs/quickstart.md"))
        # _run puts a port of this test's own there.
        ours = shown.replace("torchrun ", "%s --master-port=29500 " % torchrun(_ROOT))
        self.assertLosses(self._run(ours), 2)

    def test_Trainer_WithoutRankAndWorldSize_EndsWithAnError(self):
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
        result = subprocess.run(
            ["examples/quickstart/trainer"],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            timeout=_PATIENCE_S,
        )
        self.assertEqual(result.returncode, 1)
        self.assertIn("RANK and WORLD_SIZE are not set", result.stderr)


if __name__ == "__main__":
    unittest.main()
