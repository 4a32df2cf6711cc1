"""What ./run cluster-faults takes for a kept promise, by jobs that only say how they are."""

import os
import sys
import tempfile
import types
import unittest

sys.path.insert(0, "tools/cluster_faults")
import failures
import faults
import job
import rounds

_LIMITS = types.SimpleNamespace(lease_s=1, step_timeout_s=4, restart_s=1, named_s=0.2, hung_s=0.3)


class FakeClock:
    """Passes only where somebody sleeps."""

    def __init__(self):
        self._now = 1000.0

    def monotonic(self):
        return self._now

    def sleep(self, seconds):
        self._now += seconds


def _told(at, ranks, after_s=0.0, code="UNAVAILABLE"):
    return {"ranks": ranks, "message": "rank is lost", "at_us": 1e6 * (at.clock.monotonic() + after_s),
            "code": code, "torn": code == "DATA_LOSS", "in_doubt": False}


class FakeTrainer:
    def __init__(self, rank, clock, step=10):
        self.rank = rank
        self.clock = clock
        self.step = self.highest = step
        self.stepped = step
        self.error = self.torn = self.loaded = self.joined = self.wrong = None
        self.done = False

    def read(self):
        pass

    def ended(self):
        return self.error is not None

    def kill(self):
        pass

    def wait(self, _):
        return 0

    def make_step(self):
        self.step += 1
        self.stepped += 1
        self.highest = self.step

    def join(self, step):
        self.step = self.highest = self.joined = step

    def load(self, step):
        self.step = self.highest = self.loaded = step

    def tell(self, ranks, after_s=0.0, code="UNAVAILABLE"):
        self.error = _told(self, ranks, after_s, code)


class FakeJob:
    """Four hosts. `happens` is called with the job whenever somebody looks at it after the fault."""

    steps = 100

    def __init__(self, happens):
        self.clock = FakeClock()
        self.trainers = [FakeTrainer(rank, self.clock) for rank in range(5)]
        self.hosts = types.SimpleNamespace(cut=lambda host: None, mend=lambda host: None)
        self.coordinator = FakeTrainer(None, self.clock)
        self.servers = [types.SimpleNamespace(kill=lambda: None, kill_server=lambda: None,
                                              ended=lambda: False)] * 4
        self.started = []
        self.ended = []  # trainers that have successors
        self.other_bits = None
        self.attributed = True
        self._happens = happens

    def ranks_of(self, host):
        return [0, 1] if host == 0 else [host + 1]

    def wait_until(self, *_):
        pass

    def has_checkpoint(self):
        return True

    def newest_checkpoint(self):
        return 4

    def is_known_to_coordinator(self):
        return self.attributed

    def read(self):
        self._happens(self)

    def check_bits(self):
        if self.other_bits:
            raise failures.Broken(self.other_bits)

    def highest_step(self):
        return max(trainer.highest for trainer in [*self.ended, *self.trainers])

    def step_before(self, rank):
        return max(trainer.highest for trainer in self.ended if trainer.rank == rank)

    def start_trainer(self, rank):
        self.started.append(rank)
        self.ended.append(self.trainers[rank])
        self.trainers[rank] = FakeTrainer(rank, self.clock, step=0)

    def step(self):
        """Of all ranks; those that are new join first."""
        finished = self.highest_step()
        for trainer in self.trainers:
            if trainer.step == 0:
                trainer.join(finished)
            if trainer.error is None:
                trainer.make_step()


def _run(kind, happens, attributed=True, lasts_s=0):
    """The job, and the result of such a fault of rank 3, alone on host 2."""
    fault = faults.Fault(faults.KINDS[kind], host=2, rank=3, after_steps=1, after_s=0, lasts_s=lasts_s)
    disturbed = FakeJob(happens)
    disturbed.attributed = attributed
    return disturbed, rounds.Round(disturbed, fault, _LIMITS, disturbed.clock).run()


class Rounds(unittest.TestCase):
    def test_a_job_that_steps_on_has_the_same_bits(self):
        disturbed, result = _run("trainer", FakeJob.step)
        self.assertEqual(result.outcome, faults.SAME_BITS)
        self.assertEqual(disturbed.started, [3])

    def test_other_bits_break_the_promise(self):
        def differ(disturbed):
            disturbed.other_bits = "other bits"
        with self.assertRaisesRegex(failures.Broken, "other bits"):
            _run("trainer", differ)

    def test_an_error_where_none_is_promised_breaks_it(self):
        def tell_one(disturbed):
            disturbed.step()
            if 1 not in disturbed.started:
                disturbed.trainers[1].tell([3])
        with self.assertRaisesRegex(failures.Broken, "is not what is promised"):
            _run("trainer", tell_one)

    def test_a_job_that_does_nothing_hangs(self):
        for kind in ("server", "link-lease", "host"):
            with self.assertRaises(failures.Hung):
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
            with self.assertRaisesRegex(failures.Broken, said):
                _run("host", tell)

    def test_a_trainer_that_ends_without_an_error_breaks_the_promise(self):
        def end(disturbed):
            disturbed.trainers[0].ended = lambda: True
        with self.assertRaisesRegex(failures.Broken, "rank 0 ended without an error"):
            _run("host", end)

    def test_without_a_coordinator_that_knows_them_ranks_may_name_whom_they_saw(self):
        def tell(disturbed):
            for trainer in disturbed.trainers:
                if trainer.rank != 3:
                    trainer.tell([(trainer.rank + 1) % 5])
        self.assertEqual(_run("host", tell, attributed=False)[1].outcome, faults.NEW_JOB)
        with self.assertRaisesRegex(failures.Broken, "names others than the lost ranks"):
            _run("host", tell)

    def test_a_torn_step_ends_once_all_ranks_have_loaded_and_stepped(self):
        def tear(disturbed, loads):
            for trainer in disturbed.trainers:
                trainer.torn = trainer.torn or _told(trainer, [3], code="DATA_LOSS")
                if loads(trainer) and trainer.loaded is None:
                    trainer.load(4)
                if trainer.loaded is not None:
                    trainer.make_step()
        disturbed, result = _run("server", lambda disturbed: tear(disturbed, lambda trainer: True))
        self.assertEqual(result.outcome, faults.FROM_CHECKPOINT)
        with self.assertRaises(failures.Hung):
            _run("server", lambda disturbed: tear(disturbed, lambda trainer: trainer.rank != 1))

    def test_a_torn_step_is_told_in_time_too(self):
        def tear(disturbed):
            disturbed.trainers[0].torn = _told(disturbed, [3], after_s=0.5, code="DATA_LOSS")
        with self.assertRaisesRegex(failures.Broken, "told only after"):
            _run("server", tear)

    def test_a_link_that_is_cut_for_long_is_named_and_the_job_goes_on(self):
        def tell_once(disturbed):
            disturbed.step()
            if not disturbed.started:
                disturbed.trainers[0].tell([3])
        disturbed, result = _run("link-long", tell_once)
        self.assertEqual(result.outcome, faults.SUCCESSORS)
        self.assertEqual(disturbed.started, [0])

    def test_a_job_whose_new_trainers_only_join_or_make_one_step_hangs(self):
        # The last trainers to be told made step 17; the servers may have finished more.
        for joined, steps in ((17, 0), (17, 1), (19, 0)):
            def tell_all_then_join(disturbed, joined=joined, steps=steps):
                if not disturbed.started:
                    for trainer in disturbed.trainers:
                        trainer.step = trainer.highest = 17
                        trainer.tell([3])
                for trainer in disturbed.trainers:
                    if trainer.step == 0:
                        if disturbed.clock.monotonic() > 1000.4:
                            trainer.join(joined)
                    elif trainer.error is None and trainer.stepped < steps:
                        trainer.make_step()
            with self.assertRaises(failures.Hung, msg=(joined, steps)):
                _run("link-long", tell_all_then_join, lasts_s=0.3)  # they are started, and join later

    def test_a_job_that_starts_again_from_zero_breaks_the_promise(self):
        def tell_all_then_start_over(disturbed):
            if not disturbed.started:
                for trainer in disturbed.trainers:
                    trainer.tell([3])
            for trainer in disturbed.trainers:
                if trainer.error is None:
                    if trainer.joined is None:
                        trainer.join(0)
                    for _ in range(12):
                        trainer.make_step()
        with self.assertRaisesRegex(failures.Broken, "finished step 10, and its successor joined after step 0"):
            _run("link-long", tell_all_then_start_over)

    def test_other_bits_that_a_trainer_says_at_its_end_break_the_promise(self):
        def tell(disturbed):
            for trainer in disturbed.trainers:
                if trainer.rank != 3:
                    trainer.tell([3])
                    trainer.read = lambda: setattr(disturbed, "other_bits", "other bits")
        with self.assertRaisesRegex(failures.Broken, "other bits"):
            _run("host", tell)

    def test_a_job_that_loads_early_must_come_past_the_step_at_the_end_of_the_fault(self):
        def tear_then_stand_still(disturbed):
            for trainer in disturbed.trainers:
                trainer.torn = trainer.torn or _told(trainer, [3], code="DATA_LOSS")
                if trainer.loaded is None:
                    trainer.load(4)
                    trainer.step = trainer.highest = trainer.stepped = 9
                elif trainer.step < 11:
                    trainer.make_step()
        with self.assertRaises(failures.Hung):
            _run("link-short", tear_then_stand_still)

    def test_checkpoints_that_are_older_than_the_fault_or_differ_break_the_promise(self):
        for steps in ([3] * 5, [4, 4, 4, 4, 5]):
            def tear(disturbed, steps=steps):
                for trainer in disturbed.trainers:
                    trainer.torn = trainer.torn or _told(trainer, [3], code="DATA_LOSS")
                    if trainer.loaded is None:
                        trainer.load(steps[trainer.rank])
                    trainer.make_step()
            with self.assertRaisesRegex(failures.Broken, "have loaded the checkpoints of steps"):
                _run("server", tear)

    def test_an_error_of_another_code_breaks_the_promise(self):
        def tell(disturbed):
            disturbed.trainers[0].tell([3], code="INTERNAL")
        with self.assertRaisesRegex(failures.Broken, "another error than that of a loss"):
            _run("host", tell)

    def test_a_fault_that_hits_nothing_is_none(self):
        for kind in ("trainer", "host", "coordinator"):
            def end(disturbed, kind=kind):
                (disturbed.coordinator if kind == "coordinator" else disturbed.trainers[3]).tell([3])
            fault = faults.Fault(faults.KINDS[kind], host=2, rank=3, after_steps=0, after_s=0, lasts_s=0)
            disturbed = FakeJob(end)
            end(disturbed)
            with self.assertRaisesRegex(failures.Hung, "was to be killed, and has ended before"):
                fault.inject(disturbed)

    def test_a_job_that_ends_before_the_fault_does_has_too_few_steps(self):
        def run_to_the_end(disturbed):
            for trainer in disturbed.trainers:
                trainer.step = trainer.highest = FakeJob.steps
        with self.assertRaisesRegex(failures.Broken, "--steps must be larger"):
            _run("link-short", run_to_the_end)


class Jobs(unittest.TestCase):
    """A job whose trainers say what they are told to, and run nowhere."""

    def setUp(self):
        self.job = job.Job(types.SimpleNamespace(count=4), None, None, None, "", 100, {}, FakeClock())
        self.job.trainers = [FakeTrainer(rank, None) for rank in range(5)]

    def end(self, wrong_at_reading):
        """All are done at the first look. Rank 3 has other bits at that one."""
        looks = []

        def read():
            looks.append(None)
            for trainer in self.job.trainers:
                trainer.done = True
            if len(looks) == wrong_at_reading:
                self.job.trainers[3].wrong = "other bits"
        self.job.trainers[0].read = read

    def test_other_bits_are_noticed_whatever_is_waited_for(self):
        self.end(wrong_at_reading=1)
        with self.assertRaisesRegex(failures.Broken, "other bits"):
            self.job.wait_until(lambda: True, 1, "anything")

    def test_other_bits_at_the_end_are_noticed(self):
        for look in (1, 2):
            self.setUp()
            self.end(wrong_at_reading=look)
            with self.assertRaisesRegex(failures.Broken, "other bits"):
                self.job.finish()
        self.setUp()
        self.end(wrong_at_reading=None)
        self.job.finish()

    def test_what_does_not_come_hangs(self):
        with self.assertRaisesRegex(failures.Hung, "waited 5 s for nothing"):
            self.job.wait_until(lambda: False, 5, "nothing")

    def test_the_newest_checkpoint_is_one_that_is_committed(self):
        with tempfile.TemporaryDirectory() as folder:
            checkpoints = job.Job(types.SimpleNamespace(count=4), None, None, None, folder, 100, {})
            self.assertIsNone(checkpoints.newest_checkpoint())
            for name in ("step-000000000020", "step-000000000100.1", "step-000000000120"):
                os.mkdir(os.path.join(folder, name))
                if name != "step-000000000120":
                    open(os.path.join(folder, name, "manifest.json"), "w", encoding="ascii").close()
            self.assertEqual(checkpoints.newest_checkpoint(), 100)


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


if __name__ == "__main__":
    unittest.main()
