"""scaling: the step in shared memory over 1, 2, 4 and 8 ranks of one host, one thread each."""

import os

import recipe
from harness import chart, report
from harness.benchmark import Benchmark, Part

_RANKS = (1, 2, 4, 8)
# Less than the recipe: eight replicas of it, and of the peers, have to fit into memory. Every rank owns
# as many layers as every other one.
_LAYERS = 8


class Scaling(Benchmark):
    name = "scaling"
    title = "reduce, update and publish of %d x Linear(2000, 2000), Adam, 1 thread each" % _LAYERS

    def _contestants(self, ranks):
        layers = "--layers=%d" % _LAYERS
        return [
            self.sharded(
                "ours", "optshard", "ours", "optshard-bench-step", [layers], ranks, same_result=True
            ),
            self.peer(
                "all_reduce_zero_%d" % ranks,
                "all-reduce + torch ZeRO",
                "peer",
                "optimizer_step.py",
                ["--optimizer=zero_bucket_view", "--all_reduce", layers],
                ranks,
                same_result=True,
            ),
            recipe.memory_bound(
                self,
                "memory bound of the one-pass step",
                ranks,
                replicas=ranks,
                parameters=recipe.PARAMETERS * _LAYERS // recipe.LAYERS,
            ),
        ]

    def parts(self):
        for ranks in _RANKS:
            title = "%s, %d rank%s" % (self.title, ranks, "" if ranks == 1 else "s")
            yield Part("scaling_%d" % ranks, title, self._contestants(ranks))

    def finish(self, entries, out):
        by_title = {}
        for entry in entries:
            ranks = int(entry["name"].rpartition("_")[2])
            for figures in entry["contestants"]:
                by_title.setdefault(figures["title"], {})[ranks] = figures["ms"]
        if not by_title:
            return ""
        drawing = chart.line_chart(self.title, "ranks", "ms a step", list(by_title.items()))
        with open(os.path.join(out, "scaling.svg"), "w", encoding="utf-8") as file:
            file.write(drawing)
        rows = [
            [title, *("%.1f" % points[ranks] if ranks in points else "-" for ranks in _RANKS)]
            for title, points in by_title.items()
        ]
        header = ["median ms", *("%d rank%s" % (ranks, "" if ranks == 1 else "s") for ranks in _RANKS)]
        return "\n".join(["## %s: %s" % (self.name, self.title), "", *report.table(header, rows), ""])
