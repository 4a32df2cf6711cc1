"""rules: each rule in one process, beside torch's where torch has it, on one thread and on two."""

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
    "lion": 1,
    "nadam": 2,
    "radam": 2,
    "rmsprop": 1,
    "rprop": 2,
    "sgd": 1,
    "sparse_adam": 2,
}
# Not element-wise: products of matrices or norms come between the passes, so memory alone is no bound.
_WHOLE = ("lamb", "muon")
# The forms that torch has of most rules on CPUs; _FORMS lists the other rules with theirs.
_USUAL_FORMS = ("foreach", "loop", "compiled")
_FORMS = {
    "adagrad": ("fused", *_USUAL_FORMS),
    "adam": ("fused", *_USUAL_FORMS),
    "adamw": ("fused", *_USUAL_FORMS),
    "lamb": (),
    "lion": (),
    "muon": ("loop", "compiled"),
    "sgd": ("fused", *_USUAL_FORMS),
    "sparse_adam": ("loop",),
}
# Rules whose gradients are sparse: they have one row of each matrix in so many. The biases, of which a row
# would be one element, are left out.
_SPARSE = {"sparse_adam": 4}
_MATRICES = _LAYERS * 2000 * 2000


class Rules(Benchmark):
    name = "rules"
    title = "update of %d x Linear(2000, 2000), one process" % _LAYERS
    # Compiled forms of torch approximate.
    result_tolerance = 1e-3

    def _contestants(self, rule, threads):
        arguments = ["--rule=" + rule, "--threads=%d" % threads, "--layers=%d" % _LAYERS]
        if rule == "sgd":
            arguments.append("--momentum=0.9")
        if rule in _SPARSE:
            arguments.append("--sparse_every=%d" % _SPARSE[rule])
        yield self.sharded(
            "ours", "optshard", "ours", "optshard-bench-step", arguments, 1, same_result=True
        )
        for form in _FORMS.get(rule, _USUAL_FORMS):
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
        updated = _MATRICES // _SPARSE[rule] if rule in _SPARSE else _PARAMETERS
        yield recipe.memory_bound(
            self,
            "memory bound, %d bytes a parameter" % moved,
            world_size=threads,
            replicas=1,
            parameters=updated * moved // _BYTES_OF_BOUND,
        )

    def parts(self):
        for rule in (*_SLOTS, *_WHOLE):
            for threads in _THREADS:
                title = "%s, %s, %d thread%s" % (self.title, rule, threads, "s"[: threads > 1])
                if rule in _SPARSE:
                    title += ", gradients of one row in %d" % _SPARSE[rule]
                yield Part(
                    "rules_%s_%d" % (rule, threads), title, list(self._contestants(rule, threads))
                )
