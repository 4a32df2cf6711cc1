"""rules: each rule that torch has, too, in one process beside torch's, on one thread and on two."""

import recipe
from harness.benchmark import Benchmark, Part

_THREADS = (1, 2)
_LAYERS = 10
_PARAMETERS = recipe.PARAMETERS * _LAYERS // recipe.LAYERS
# The kernel of the memory bound moves gradient, parameter and two slots.
_BYTES_OF_BOUND = 4 + 8 + 2 * 8

# How many values a rule keeps of each element with its default options; sgd has a momentum. Those of
# adafactor's rows and columns are a thousandth of the elements.
_SLOTS = {
    "adafactor": 0,
    "adadelta": 2,
    "adagrad": 1,
    "adam": 2,
    "adamax": 2,
    "adamw": 2,
    "asgd": 1,
    "nadam": 2,
    "radam": 2,
    "rmsprop": 1,
    "rprop": 2,
    "sgd": 1,
}
# Not element-wise: products of matrices, whose time memory does not bound.
_WHOLE = ("muon",)
# Which torch has a fused form of, on CPUs.
_FUSED = ("adagrad", "adam", "adamw", "sgd")


class Rules(Benchmark):
    name = "rules"
    title = "update of %d x Linear(2000, 2000), one process" % _LAYERS
    # Compiled forms of torch approximate.
    result_tolerance = 1e-3

    def _contestants(self, rule, threads):
        arguments = ["--rule=" + rule, "--threads=%d" % threads, "--layers=%d" % _LAYERS]
        if rule == "sgd":
            arguments.append("--momentum=0.9")
        yield self.sharded(
            "ours", "optshard", "ours", "optshard-bench-step", arguments, 1, same_result=True
        )
        forms = ["loop", "compiled"] if rule in _WHOLE else ["foreach", "loop", "compiled"]
        if rule in _FUSED:
            forms.insert(0, "fused")
        for form in forms:
            yield self.one_process(
                form,
                "torch, " + form,
                "peer",
                "rule_step.py",
                [*arguments, "--form=" + form],
                same_result=True,
            )
        if rule in _WHOLE:
            return
        moved = 4 + 8 + 8 * _SLOTS[rule]
        yield recipe.memory_bound(
            self,
            "memory bound, %d bytes a parameter" % moved,
            world_size=threads,
            replicas=1,
            parameters=_PARAMETERS * moved // _BYTES_OF_BOUND,
        )

    def parts(self):
        for rule in (*_SLOTS, *_WHOLE):
            for threads in _THREADS:
                title = "%s, %s, %d thread%s" % (self.title, rule, threads, "s"[: threads > 1])
                yield Part(
                    "rules_%s_%d" % (rule, threads), title, list(self._contestants(rule, threads))
                )
