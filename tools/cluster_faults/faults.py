"""The kinds of faults, what each does to a job, and how a job may end after it.

What a job may do is what docs/errors.md and docs/sidecar.md promise, not what it was seen to do.
"""

import dataclasses
import random

from failures import Hung

# Nobody is told anything, and the parameters are those of a run that nothing disturbed.
SAME_BITS = "same bits"
# Ranks were told which loss has torn the step, and have gone on from a checkpoint with the same bits.
FROM_CHECKPOINT = "torn, from checkpoint"
# Ranks were told whom they waited for in vain; their successors go on with the same bits.
SUCCESSORS = "named, successors"
# All ranks were told whose state is lost; a new job goes on from a checkpoint with the same bits.
NEW_JOB = "named, new job"


@dataclasses.dataclass(frozen=True)
class Kind:
    name: str
    what: str
    may_end: frozenset
    cards: int  # how often among 20 faults
    # How long what was ended or cut stays so: parts of `base`.
    base: str = "restart_s"  # a field of Limits
    least: float = 0.0
    most: float = 1.0
    takes_state: bool = False  # the memory of a host is gone
    first_host: int = 0  # that it may hit


def _kind(name, what, may_end, cards, **more):
    return Kind(name, what, frozenset(may_end), cards, **more)


_LIVES = (SAME_BITS,)
# A step that was being applied may be torn.
_LIVES_OR_TORN = (SAME_BITS, FROM_CHECKPOINT)

KINDS = {kind.name: kind for kind in (
    _kind("trainer", "a trainer is killed, and a successor is started", _LIVES, 4),
    _kind("server", "a shard server is killed; its keeper starts another one", _LIVES_OR_TORN, 3),
    _kind("coordinator", "the coordinator is killed, and started anew", _LIVES, 3),
    _kind("link-short", "a host's link is cut for less than the lease", _LIVES_OR_TORN, 2,
          base="lease_s", least=0.2, most=0.8),
    _kind("link-lease", "a host's link is cut for longer than the lease", _LIVES_OR_TORN, 2,
          base="lease_s", least=1.2, most=2.0),
    _kind("link-long", "a host's link is cut for longer than a step may wait",
          (SUCCESSORS,), 1, base="step_timeout_s", least=1.4, most=1.8),
    _kind("link-slow", "a host's link has 20 Mbit/s", _LIVES, 1, base="step_timeout_s", least=0.4),
    _kind("trainer+server", "a trainer and its shard server are killed", _LIVES_OR_TORN, 1),
    _kind("coordinator+server", "the coordinator and a shard server are killed", _LIVES_OR_TORN, 1),
    # The first host's address is the coordinator's, which all others were told.
    _kind("address", "a shard server is killed, and its host has another address from then on",
          _LIVES_OR_TORN, 1, first_host=1),
    _kind("keeper", "a shard server and its keeper are killed: the state of its ranks is lost",
          (NEW_JOB,), 1, takes_state=True),
    _kind("host", "a host is gone: its link is cut and all that runs there is killed",
          (NEW_JOB,), 2, takes_state=True),
)}


@dataclasses.dataclass(frozen=True)
class Fault:
    kind: Kind
    host: int
    rank: int        # of that host
    after_steps: int  # steps that all ranks do before
    after_s: float   # and then, so that it falls anywhere in a step
    lasts_s: float

    def __str__(self):
        return "%s (host %d, rank %d) after %d steps and %.4f s, for %.3f s" % (
            self.kind.name, self.host, self.rank, self.after_steps, self.after_s, self.lasts_s)

    @property
    def holds_up_steps(self):
        """Whether ranks make no steps while it lasts, or a few. Without a coordinator they step on."""
        return not self.kind.name.startswith("coordinator")

    def hits(self, job):
        """Ranks that are lost, or lose something, by the fault."""
        if self.kind.name == "trainer":
            return {self.rank}
        if self.kind.name == "coordinator":
            return set()
        return set(job.ranks_of(self.host))

    def inject(self, job):
        """What is to be done once it has lasted its time, as functions."""
        name = self.kind.name
        if name.startswith("link-"):
            (job.hosts.slow_down if name == "link-slow" else job.hosts.cut)(self.host)
            return [lambda: job.hosts.mend(self.host)]
        undo = []
        if name == "host":
            job.hosts.cut(self.host)
            for rank in job.ranks_of(self.host):
                _kill(job.trainers[rank], "the trainer of rank %d" % rank)
            _kill(job.servers[self.host], "the keeper of host %d" % self.host)
            if self.host == 0:
                _kill(job.coordinator, "the coordinator")
            return undo
        if name == "keeper":
            _kill(job.servers[self.host], "the keeper of host %d" % self.host)
            return undo
        if name.startswith("coordinator"):
            _kill(job.coordinator, "the coordinator")
            undo.append(job.start_coordinator)
        if name.startswith("trainer"):
            _kill(job.trainers[self.rank], "the trainer of rank %d" % self.rank)
            undo.append(lambda: job.start_trainer(self.rank))
        if name == "address":
            job.hosts.readdress(self.host)
        if name.endswith("server") or name == "address":
            job.servers[self.host].kill_server()
        return undo


def _kill(process, name):
    """A fault that hits nothing would count as survived."""
    if process.ended():
        raise Hung("%s was to be killed, and has ended before" % name)
    process.kill()


def schedule(seed, count, names, limits, hosts):
    """The faults of a seed: first one of each kind, then as often as the kinds' cards say."""
    chance = random.Random(seed)
    kinds = [KINDS[name] for name in names]
    faults = []
    cards = list(kinds)
    while len(faults) < count:
        chance.shuffle(cards)
        faults += [_draw(kind, chance, limits, hosts) for kind in cards]
        cards = [kind for kind in kinds for _ in range(kind.cards)]
    return faults[:count]


def _draw(kind, chance, limits, hosts):
    host = chance.randrange(kind.first_host, hosts)
    return Fault(kind, host, chance.choice([0, 1]) if host == 0 else host + 1,
                 chance.randint(1, 20), chance.uniform(0, 0.05),
                 chance.uniform(kind.least, kind.most) * getattr(limits, kind.base))
