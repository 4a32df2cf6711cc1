"""That what the README shows works: the trainer, and the commands it names."""

import os
import re
import subprocess
import unittest

from tests.testing.master_port import free_master_port

_TIMEOUT_S = 120


class ReadmeTest(unittest.TestCase):
    def test_Trainer_TwoRanks_LossFallsAndStateIsShared(self):
        environment = dict(
            os.environ, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_master_port())
        )
        ranks = [
            subprocess.Popen(
                ["tests/readme/readme_trainer"],
                env=dict(environment, RANK=str(rank)),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            outputs = [rank.communicate(timeout=_TIMEOUT_S)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        state_bytes = 0
        for rank, output in zip(ranks, outputs):
            self.assertEqual(rank.returncode, 0, output)
            losses = [float(x) for x in re.findall(r"^step \d+ loss ([\d.]+)$", output, re.M)]
            self.assertEqual(len(losses), 4, output)
            # A model that has learnt nothing has one of about 8.
            self.assertLess(losses[-1], 1, output)
            here = re.search(r"^(\d+) bytes of optimizer state here$", output, re.M)
            state_bytes += int(here.group(1))
            self.assertGreater(int(here.group(1)), 0, output)
        # exp_avg and exp_avg_sq of all parameters, once over both ranks; a step count for each of the
        # four parameters may be added.
        parameters = 8 * 64 + 64 + 64 * 1 + 1
        self.assertGreaterEqual(state_bytes, 2 * 4 * parameters)
        self.assertLessEqual(state_bytes, 2 * 4 * parameters + 4 * 4)

    def test_Commands_NamedInReadme_Exist(self):
        with open("README.md", encoding="utf-8") as readme:
            named = set(re.findall(r"\./run ([a-z]+)", readme.read()))
        listed = subprocess.run(
            ["bash", "run"], stdout=subprocess.PIPE, text=True, check=True, timeout=_TIMEOUT_S
        ).stdout
        self.assertTrue({"demo", "test"} <= named)
        for command in named:
            self.assertRegex(listed, r"(?m)^  %s\b" % command)


if __name__ == "__main__":
    unittest.main()
