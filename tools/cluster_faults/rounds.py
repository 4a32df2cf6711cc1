"""One fault: it is injected, and the job is watched until it goes on, or all its ranks have been told why
it does not."""

import dataclasses
import time

from failures import Broken, Hung
from faults import FROM_CHECKPOINT, NEW_JOB, SAME_BITS, SUCCESSORS

# Until somebody starts a trainer again that has ended with an error.
_RESTART_S = 0.2
# Of a loss, as docs/errors.md has them. DATA_LOSS only with a step that is torn or in doubt.
_CODES = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "DATA_LOSS")
# So many steps after the fault the job has gone on.
_MORE_STEPS = 2


def _seconds(error):
    return error["at_us"] / 1e6


@dataclasses.dataclass
class Result:
    outcome: str
    named_s: float = None    # from the fault until the last rank was told
    went_on_s: float = None  # from the end of the fault until all ranks had done more steps


class Round:
    def __init__(self, job, fault, limits, clock=time):
        self._job = job
        self._fault = fault
        self._limits = limits
        self._clock = clock
        self._checkpoint = None  # step of the newest one at the fault
        self._stepped = {}  # by trainer: how many steps it had made when the fault was over
        self._torn = {}    # by rank: the first event of a torn step since the fault
        self._errors = {}  # by rank: the first error
        self._restarts = {}  # by rank: when

    def run(self):
        job, fault = self._job, self._fault
        job.wait_until(job.has_checkpoint, 60, "the first checkpoint")
        first = min(trainer.step for trainer in job.trainers) + fault.after_steps
        job.wait_until(lambda: all(trainer.step >= first for trainer in job.trainers), 60,
                       "step %d of all ranks" % first)
        self._clock.sleep(fault.after_s)
        # Otherwise each rank says what it saw itself, which may be what others did upon the loss.
        self._attributed = job.is_known_to_coordinator() and not (
            fault.kind.name == "host" and fault.host == 0)
        self._checkpoint = job.newest_checkpoint()
        self._began = self._clock.monotonic()
        self._hit = fault.hits(job)
        self._before = list(job.trainers)
        for trainer in job.trainers:
            trainer.loaded = None
        undo = fault.inject(job)
        return self._watch(undo, self._clock.monotonic() + (fault.lasts_s if undo else 0))

    def _watch(self, undo, undo_at):
        job = self._job
        target = None  # a step that ranks come to only after the fault is over
        limit = undo_at + self._limits.hung_s
        while True:
            now = self._clock.monotonic()
            if undo and now >= undo_at:
                while undo:
                    undo.pop()()
                undo_at = self._clock.monotonic()
            job.read()
            job.check_bits()
            self._take_errors()
            if self._fault.kind.takes_state:
                if self._all_told():
                    return self._result(NEW_JOB)
            else:
                self._restart(now)
                if not undo and target is None:
                    target = self._target()
                if target is not None and all(self._has_gone_on(trainer, target) for trainer in job.trainers):
                    return self._goes_on(now - undo_at)
            if now > limit:
                raise Hung("%.1f s after the fault the job has neither gone on nor ended"
                           % (now - self._began))
            self._clock.sleep(0.01)

    def _target(self):
        """The step that all ranks must come to. A successor that has not joined yet has made none: those of its
        predecessors count, too."""
        self._job.read()
        highest = self._job.highest_step()
        if highest + _MORE_STEPS > self._job.steps:
            raise Broken("step %d of %d was finished before the fault was over: --steps must be larger"
                         % (highest, self._job.steps))
        self._stepped = {trainer: trainer.stepped for trainer in self._job.trainers}
        return highest + _MORE_STEPS

    def _take_errors(self):
        for trainer in self._job.trainers:
            if trainer.ended() and trainer not in self._killed():
                trainer.read()
                if trainer.error is None and not trainer.done:
                    raise Broken("rank %d ended without an error" % trainer.rank)
            first = trainer in self._before
            if trainer.torn and trainer.rank not in self._torn:
                self._torn[trainer.rank] = trainer.torn
                if first:
                    self._check_told(trainer.rank, trainer.torn, self._began)
            if trainer.error and trainer.rank not in self._errors:
                self._errors[trainer.rank] = trainer.error
                if first:
                    # It has loaded since, or tried to.
                    since = _seconds(trainer.torn) if trainer.torn else self._began
                    self._check_told(trainer.rank, trainer.error, since)

    def _killed(self):
        """Trainers that this fault has killed."""
        if self._fault.kind.name.startswith("trainer"):
            return [self._before[self._fault.rank]]
        if self._fault.kind.name == "host":
            return [self._before[rank] for rank in self._hit]
        return []

    def _check_told(self, rank, error, since):
        """It has a code of a loss, names somebody, and comes in time."""
        after = _seconds(error) - since
        lost_its_own = rank in self._hit
        if error["code"] not in _CODES or (
                error["code"] == "DATA_LOSS" and not error["torn"] and not error["in_doubt"]):
            raise Broken("rank %d is told another error than that of a loss: %s" % (rank, error))
        if not error["ranks"] and not (lost_its_own and "keeper" in error["message"]):
            raise Broken("rank %d is told of no rank: %s" % (rank, error))
        if after > self._limits.named_s:
            raise Broken("rank %d was told only after %.1f s: %s" % (rank, after, error))
        if self._fault.kind.takes_state and self._attributed and not lost_its_own:
            if not set(error["ranks"]) <= self._hit:
                raise Broken("rank %d names others than the lost ranks %s: %s"
                             % (rank, sorted(self._hit), error))

    def _all_told(self):
        return all(trainer.error or trainer in self._killed() for trainer in self._job.trainers)

    def _has_gone_on(self, trainer, target):
        if trainer.loaded is not None:
            target = max(target, trainer.loaded + _MORE_STEPS)
        has_stepped = trainer.stepped > self._stepped.get(trainer, 0)
        return trainer.step >= min(target, self._job.steps) and has_stepped and trainer.error is None

    def _restart(self, now):
        """As whoever supervises trainers does."""
        for trainer in list(self._job.trainers):
            if trainer.error is None or not trainer.ended():
                continue
            at = self._restarts.setdefault(trainer, now + _RESTART_S)
            if now >= at:
                self._job.start_trainer(trainer.rank)

    def _goes_on(self, went_on_s):
        self._check_loaded()
        if not self._torn:
            self._check_joined()
        if self._errors:
            return self._result(SUCCESSORS, went_on_s)
        return self._result(FROM_CHECKPOINT if self._torn else SAME_BITS, went_on_s)

    def _check_loaded(self):
        """All ranks go on from one checkpoint, which is at least as new as the newest one at the fault."""
        trainers = self._job.trainers
        loaded = [trainer.loaded for trainer in trainers if trainer.loaded is not None]
        if self._torn and not self._errors and len(loaded) < len(trainers):
            raise Broken("after a torn step only %d of %d ranks have loaded" % (len(loaded), len(trainers)))
        if len(set(loaded)) > 1 or any(step < self._checkpoint for step in loaded):
            raise Broken("ranks have loaded the checkpoints of steps %s; the newest at the fault was of step %s"
                         % (loaded, self._checkpoint))

    def _check_joined(self):
        """Without a torn step nothing that a rank has finished is lost."""
        for trainer in set(self._job.trainers) - set(self._before):
            finished = self._job.step_before(trainer.rank)
            if trainer.joined < finished:
                raise Broken("rank %d had finished step %d, and its successor joined after step %d"
                             % (trainer.rank, finished, trainer.joined))

    def _result(self, outcome, went_on_s=None):
        # Ends of trainers may have been read since the last look.
        self._job.check_bits()
        told = [*self._torn.values(), *self._errors.values()]
        if outcome not in self._fault.kind.may_end:
            raise Broken('"%s" is not what is promised; ranks were told: %s' % (outcome, told))
        for trainer in self._job.trainers:
            trainer.torn = None  # has been dealt with
        # Of a torn step an error tells nothing new: that the checkpoint could not be loaded.
        first = {**self._errors, **self._torn}.values()
        return Result(outcome, max((_seconds(each) - self._began for each in first), default=None), went_on_s)
