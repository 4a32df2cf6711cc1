"""step_threads: how many threads of a shard owner update best, for one and for two ranks of one host."""

import recipe
from harness.benchmark import Benchmark, Part

_RANKS = (1, 2)
_THREADS = (1, 2, 4)


class StepThreads(Benchmark):
    name = "step_threads"
    title = "reduce, update and publish of %s, Adam" % recipe.TITLE

    def _ours(self, ranks, threads, role, title):
        name = "threads_%d_%d" % (ranks, threads)
        arguments = ["--gradients=reduce", "--threads=%d" % threads]
        return self.sharded(
            name, title, role, "optshard-bench-step", arguments, ranks, same_result=True
        )

    def parts(self):
        for ranks in _RANKS:
            contestants = [self._ours(ranks, 0, "ours", "the default")]
            for threads in _THREADS:
                title = "%d thread%s a rank" % (threads, "s"[: threads > 1])
                contestants.append(self._ours(ranks, threads, "reference", title))
            contestants.append(
                self.peer(
                    "all_reduce_adam_%d" % ranks,
                    "all-reduce + torch Adam, replicated",
                    "peer",
                    "optimizer_step.py",
                    ["--optimizer=replicated", "--all_reduce"],
                    ranks,
                    same_result=True,
                )
            )
            contestants.append(
                recipe.memory_bound(
                    self, "memory bound of the one-pass step", world_size=ranks, replicas=ranks
                )
            )
            title = "%s, %d rank%s" % (self.title, ranks, "s"[: ranks > 1])
            yield Part("step_threads_%d" % ranks, title, contestants)
