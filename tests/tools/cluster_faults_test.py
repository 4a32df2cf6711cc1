"""What ./run cluster-faults takes for a kept promise, by jobs that only say how they are."""

import json
import os
import sys
import tempfile
import time
import types
import unittest

sys.path.insert(0, "tools/cluster_faults")
import faults
import job
import rounds
from processes import Trainer

_LIMITS = types.SimpleNamespace(lease_s=1, step_timeout_s=4, restart_s=1, named_s=0.2, hung_s=0.3)


def _told(ranks, after_s=0.0):
    return {"ranks": ranks, "message": "rank is lost", "at_us": 1e6 * (time.monotonic() + after_s)}


class FakeTrainer:
    def __init__(self, rank):
        self.rank = rank
        self.step = 10
        self.error = self.torn = self.loaded = None
        self.done = False

    def read(self):
        pass

    def ended(self):
        return self.error is not None

    def kill(self):
        pass

    def tell(self, ranks, after_s=0.0):
        self.error = _told(ranks, after_s)


class FakeJob:
    """Four hosts. `happens` is called with the job whenever somebody looks at it after the fault."""

    steps = 100

    def __init__(self, happens):
        self.trainers = [FakeTrainer(rank) for rank in range(5)]
        self.hosts = types.SimpleNamespace(cut=lambda host: None, mend=lambda host: None)
        self.servers = [types.SimpleNamespace(kill=lambda: None, kill_server=lambda: None)] * 4
        self.started = []
        self.other_bits = None
        self.attributed = True
        self._happens = happens

    def ranks_of(self, host):
        return [0, 1] if host == 0 else [host + 1]

    def wait_until(self, *_):
        pass

    def has_checkpoint(self):
        return True

    def is_known_to_coordinator(self):
        return self.attributed

    def read(self):
        self._happens(self)

    def wrong(self):
        return self.other_bits

    def last_step(self):
        return max(trainer.step for trainer in self.trainers)

    def start_trainer(self, rank):
        self.started.append(rank)
        self.trainers[rank] = FakeTrainer(rank)

    def step(self):
        for trainer in self.trainers:
            trainer.step += trainer.error is None


def _run(kind, happens, attributed=True):
    """The job, and the result of such a fault of rank 3, alone on host 2."""
    fault = faults.Fault(faults.KINDS[kind], host=2, rank=3, after_steps=1, after_s=0, lasts_s=0)
    disturbed = FakeJob(happens)
    disturbed.attributed = attributed
    return disturbed, rounds.Round(disturbed, fault, _LIMITS).run()


class Rounds(unittest.TestCase):
    def test_a_job_that_steps_on_has_the_same_bits(self):
        disturbed, result = _run("trainer", FakeJob.step)
        self.assertEqual(result.outcome, faults.SAME_BITS)
        self.assertEqual(disturbed.started, [3])

    def test_other_bits_break_the_promise(self):
        def differ(disturbed):
            disturbed.other_bits = "other bits"
        with self.assertRaisesRegex(rounds.Broken, "other bits"):
            _run("trainer", differ)

    def test_an_error_where_none_is_promised_breaks_it(self):
        def tell_one(disturbed):
            disturbed.step()
            if 1 not in disturbed.started:
                disturbed.trainers[1].tell([3])
        with self.assertRaisesRegex(rounds.Broken, "is not what is promised"):
            _run("trainer", tell_one)

    def test_a_job_that_does_nothing_hangs(self):
        for kind in ("server", "link-lease", "host"):
            with self.assertRaises(job.Hung):
                _run(kind, lambda disturbed: None)

    def test_a_lost_host_that_all_others_are_told_of_is_a_named_loss(self):
        def tell(disturbed):
            for trainer in disturbed.trainers:
                if trainer.rank != 3:
                    trainer.tell([3])
        _, result = _run("host", tell)
        self.assertEqual(result.outcome, faults.NEW_JOB)
        self.assertLess(result.named_s, 0.2)

    def test_a_loss_that_is_told_badly_breaks_the_promise(self):
        for ranks, after_s, said in (([3], 0.5, "told only after"), ([], 0, "told of no rank"),
                                     ([1], 0, "names others than the lost ranks")):
            def tell(disturbed, ranks=ranks, after_s=after_s):
                disturbed.trainers[0].tell(ranks, after_s=after_s)
            with self.assertRaisesRegex(rounds.Broken, said):
                _run("host", tell)

    def test_a_trainer_that_ends_without_an_error_breaks_the_promise(self):
        def end(disturbed):
            disturbed.trainers[0].ended = lambda: True
        with self.assertRaisesRegex(rounds.Broken, "rank 0 ended without an error"):
            _run("host", end)

    def test_without_a_coordinator_that_knows_them_ranks_may_name_whom_they_saw(self):
        def tell(disturbed):
            for trainer in disturbed.trainers:
                if trainer.rank != 3:
                    trainer.tell([(trainer.rank + 1) % 5])
        self.assertEqual(_run("host", tell, attributed=False)[1].outcome, faults.NEW_JOB)
        with self.assertRaisesRegex(rounds.Broken, "names others than the lost ranks"):
            _run("host", tell)

    def test_a_torn_step_ends_once_all_ranks_have_loaded_and_stepped(self):
        def tear(disturbed, loads):
            for trainer in disturbed.trainers:
                trainer.torn = trainer.torn or _told([3])
                if loads(trainer) and trainer.loaded is None:
                    trainer.step = trainer.loaded = 4
                trainer.step += trainer.loaded is not None
        disturbed, result = _run("server", lambda disturbed: tear(disturbed, lambda trainer: True))
        self.assertEqual(result.outcome, faults.FROM_CHECKPOINT)
        self.assertLess(disturbed.last_step(), 10)
        with self.assertRaises(job.Hung):
            _run("server", lambda disturbed: tear(disturbed, lambda trainer: trainer.rank != 1))

    def test_a_torn_step_is_told_in_time_too(self):
        def tear(disturbed):
            disturbed.trainers[0].torn = _told([3], after_s=0.5)
        with self.assertRaisesRegex(rounds.Broken, "told only after"):
            _run("server", tear)

    def test_a_link_that_is_cut_for_long_is_named_and_the_job_goes_on(self):
        def tell_once(disturbed):
            disturbed.step()
            if not disturbed.started:
                disturbed.trainers[0].tell([3])
        disturbed, result = _run("link-long", tell_once)
        self.assertEqual(result.outcome, faults.SUCCESSORS)
        self.assertEqual(disturbed.started, [0])


class Schedule(unittest.TestCase):
    def draw(self, seed, count):
        return faults.schedule(seed, count, list(faults.KINDS), _LIMITS, hosts=4)

    def test_a_seed_gives_the_same_faults_and_each_kind_first_once(self):
        drawn = self.draw(1, 50)
        self.assertEqual(drawn, self.draw(1, 50))
        self.assertNotEqual(drawn, self.draw(2, 50))
        kinds = len(faults.KINDS)
        self.assertEqual(sorted(fault.kind.name for fault in drawn[:kinds]), sorted(faults.KINDS))

    def test_victims_are_on_their_hosts(self):
        for fault in self.draw(1, 200):
            self.assertIn(fault.rank, FakeJob(None).ranks_of(fault.host))


class TrainersWords(unittest.TestCase):
    def trainer(self, *events):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        said = "\n".join(json.dumps(event) for event in events) + "\n"
        hosts = types.SimpleNamespace(on=lambda host, command: command)
        trainer = Trainer(hosts, 0, 0, ["printf", "%s", said], os.path.join(folder.name, "log"),
                          {1: 11, 2: 22, 3: 33})
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
