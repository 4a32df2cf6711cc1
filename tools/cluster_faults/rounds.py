"""One fault: it is injected, and the job is watched until it goes on, or all its ranks have been told why
it does not."""

import dataclasses
import time

from faults import NAMED_LOSS, NAMED_THEN_SAME_BITS, SAME_BITS
from job import Hung

# Until somebody starts a trainer again that has ended with an error.
_RESTART_S = 0.2


class Broken(Exception):
    """A promise that was not kept."""


def _seconds(error):
    return error["at_us"] / 1e6


@dataclasses.dataclass
class Result:
    outcome: str
    named_s: float = None    # from the fault until the last rank was told
    went_on_s: float = None  # from the end of the fault until all ranks had done more steps


class Round:
    def __init__(self, job, fault, limits):
        self._job = job
        self._fault = fault
        self._limits = limits
        self._errors = {}  # by rank: the first since the fault
        self._restarts = {}  # by rank: when

    def run(self):
        job, fault = self._job, self._fault
        first = min(trainer.step for trainer in job.trainers) + fault.after_steps
        job.wait_until(lambda: all(trainer.step >= first for trainer in job.trainers), 60,
                       "step %d of all ranks" % first)
        time.sleep(fault.after_s)
        self._began = time.monotonic()
        self._hit = fault.hits(job)
        self._before = list(job.trainers)
        undo = fault.inject(job)
        return self._watch(undo, time.monotonic() + (fault.lasts_s if undo else 0))

    def _watch(self, undo, undo_at):
        job = self._job
        target = None  # a step that ranks come to only after the fault is over
        limit = undo_at + self._limits.hung_s
        while True:
            now = time.monotonic()
            if undo and now >= undo_at:
                while undo:
                    undo.pop()()
                undo_at = time.monotonic()
            job.read()
            if job.wrong():
                raise Broken(job.wrong())
            self._take_errors()
            if self._all_told():
                return self._checked(Result(NAMED_LOSS, named_s=self._named_s()))
            if not self._fault.kind.takes_state:
                self._restart(now)
                if not undo and target is None:
                    job.read()
                    target = job.last_step() + 2
                if target is not None and all(trainer.step >= min(target, job.steps)
                                              and trainer.error is None for trainer in job.trainers):
                    return self._goes_on(now - undo_at)
            if now > limit:
                raise Hung("%.1f s after the fault the job has neither gone on nor ended"
                           % (now - self._began))
            time.sleep(0.01)

    def _take_errors(self):
        for trainer in self._job.trainers:
            if trainer.ended() and trainer not in self._killed():
                trainer.read()
                if trainer.error is None and not trainer.done:
                    raise Broken("rank %d ended without an error" % trainer.rank)
            if trainer.error is not None and trainer.rank not in self._errors:
                self._errors[trainer.rank] = trainer.error
                if trainer in self._before:
                    self._check_error(trainer)

    def _killed(self):
        """Trainers that this fault has killed."""
        if self._fault.kind.name.startswith("trainer"):
            return [self._before[self._fault.rank]]
        if self._fault.kind.name == "host":
            return [self._before[rank] for rank in self._hit]
        return []

    def _check_error(self, trainer):
        """It names somebody, and comes in time."""
        error = trainer.error
        after = _seconds(error) - self._began
        lost_its_own = trainer.rank in self._hit
        if not error["ranks"] and not (lost_its_own and "keeper" in error["message"]):
            raise Broken("rank %d is told of no rank: %s" % (trainer.rank, error))
        if after > self._limits.named_s:
            raise Broken("rank %d was told only after %.1f s: %s" % (trainer.rank, after, error))
        # Without a coordinator each rank says what it saw itself.
        alone = self._fault.kind.name == "host" and self._fault.host == 0
        if self._fault.kind.takes_state and not lost_its_own and not alone:
            if not set(error["ranks"]) <= self._hit:
                raise Broken("rank %d names others than the lost ranks %s: %s"
                             % (trainer.rank, sorted(self._hit), error))

    def _all_told(self):
        """That the job does not go on."""
        if self._fault.kind.takes_state:
            return all(trainer.error or trainer in self._killed() for trainer in self._job.trainers)
        # Who was told of something else, since it could not know, learns it by the next step.
        return all(trainer.error and trainer.error["torn"] for trainer in self._job.trainers)

    def _restart(self, now):
        """As whoever supervises trainers does."""
        for trainer in list(self._job.trainers):
            if trainer.error is None or trainer.error["torn"] or not trainer.ended():
                continue
            at = self._restarts.setdefault(trainer, now + _RESTART_S)
            if now >= at:
                self._job.start_trainer(trainer.rank)

    def _named_s(self):
        return max((_seconds(error) - self._began for error in self._errors.values()), default=None)

    def _goes_on(self, went_on_s):
        outcome = NAMED_THEN_SAME_BITS if self._errors else SAME_BITS
        return self._checked(Result(outcome, self._named_s(), went_on_s))

    def _checked(self, result):
        if result.outcome not in self._fault.kind.may_end:
            raise Broken("%s is not what is promised; ranks were told: %s" % (
                result.outcome, self._errors))
        return result
