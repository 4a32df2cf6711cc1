"""The processes and the hosts that ./run cluster-faults disturbs: what trainers say, and how they are ended."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

sys.path.insert(0, "tools/cluster_faults")
import failures
import hosts
import processes


class Kills(unittest.TestCase):
    def keeper(self, program):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        anywhere = types.SimpleNamespace(on=lambda host, command: command)
        keeper = processes.Server(anywhere, 2, ["bash", "-c", program], os.path.join(folder.name, "log"))
        self.addCleanup(keeper.kill)
        return keeper

    def test_a_server_that_is_killed_is_dead(self):
        keeper = self.keeper("sleep 1000 & wait $!; exit 7")
        keeper.kill_server()
        self.assertEqual(keeper.wait(60), 7)

    def test_a_keeper_is_worn_once_it_would_pause_for_long(self):
        keeper = self.keeper("while true; do sleep 1000 & wait $!; done")
        for _ in range(5):
            self.assertFalse(keeper.is_worn())
            keeper.kill_server()
        self.assertTrue(keeper.is_worn())

    def test_a_keeper_without_a_server_is_no_victim(self):
        keeper = self.keeper("exec sleep 1000")
        with mock.patch.object(processes, "_SERVER_S", 0):
            with self.assertRaisesRegex(failures.Hung, "host 2 has had no shard server"):
                keeper.kill_server()


class MakingHosts(unittest.TestCase):
    def test_an_end_meanwhile_removes_what_there_is(self):
        ran = []

        def run(command, **_):
            ran.append(command[1:])
            if command[1] == "make":
                raise SystemExit(128 + signal.SIGTERM)
        with mock.patch.object(subprocess, "run", run):
            with self.assertRaises(SystemExit):
                hosts.Hosts("some", 4)
        self.assertEqual(ran, [["make", "some", "4"], ["remove", "some"]])


class TrainersWords(unittest.TestCase):
    def trainer(self, *events):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        said = "\n".join(json.dumps(event) for event in events) + "\n"
        anywhere = types.SimpleNamespace(on=lambda host, command: command)
        log = os.path.join(folder.name, "log")
        trainer = processes.Trainer(anywhere, 0, 0, ["printf", "%s", said], log, {1: 11, 2: 22, 3: 33})
        self.addCleanup(trainer.close)
        self.assertEqual(trainer.wait(60), 0)
        trainer.read()
        return trainer

    def test_checksums_of_an_undisturbed_run_are_right(self):
        trainer = self.trainer({"event": "joined", "finished_step": 1, "checksum": 11},
                               {"event": "stepping", "step": 2, "checksum": 11},
                               {"event": "step", "step": 2, "checksum": 22},
                               {"event": "error", "code": "UNAVAILABLE", "owner_away": False, "checksum": 22})
        self.assertIsNone(trainer.wrong)
        self.assertEqual(trainer.step, 2)

    def test_steps_after_a_checkpoint_are_compared_with_those_of_their_number(self):
        events = [{"event": "step", "step": 2, "checksum": 22}, {"event": "torn", "checksum": 99},
                  {"event": "loaded", "step": 1}]
        again = {"event": "stepping", "step": 2, "checksum": 11}
        trainer = self.trainer(*events, again)
        self.assertIsNone(trainer.wrong)
        self.assertEqual((trainer.step, trainer.loaded), (1, 1))
        self.assertIsNotNone(self.trainer(*events, {**again, "checksum": 22}).wrong)

    def test_other_checksums_are_wrong_wherever_they_are_said(self):
        for events in ([{"event": "joined", "finished_step": 1, "checksum": 12}],
                       [{"event": "stepping", "step": 2, "checksum": 12}],
                       [{"event": "step", "step": 2, "checksum": 11}],
                       [{"event": "step", "step": 2, "checksum": 22},
                        {"event": "error", "code": "UNAVAILABLE", "owner_away": False, "checksum": 33}],
                       [{"event": "step", "step": 2, "checksum": 22}, {"event": "done", "checksum": 33}]):
            self.assertIsNotNone(self.trainer(*events).wrong, events)

    def test_parameters_of_no_known_step_are_not_compared(self):
        for error in ({"code": "DATA_LOSS", "owner_away": False}, {"code": "UNAVAILABLE", "owner_away": True},
                      {"code": "DEADLINE_EXCEEDED", "owner_away": False}):
            trainer = self.trainer({"event": "step", "step": 2, "checksum": 22},
                                   {"event": "error", "checksum": 99, **error})
            self.assertIsNone(trainer.wrong)


if __name__ == "__main__":
    unittest.main()
