"""peak_memory: what all processes of an iteration of the recipe hold together, two ranks on one host."""

import dataclasses

import recipe
from harness import memory, rounds
from harness.benchmark import Benchmark


class PeakMemory(Benchmark):
    name = "peak_memory"
    title = (
        "peak proportional set size, all processes together, of iterations of %s, Adam, 2 ranks"
        % recipe.TITLE
    )
    unit = "MB"
    result_tolerance = 1e-3

    def run(self, contestants, options):
        """One contestant after the other: what several of them map, LibTorch say, would count for
        each as less than it is when it runs alone."""
        options = dataclasses.replace(options, measure=memory.peak_megabytes)
        return rounds.merged([rounds.run([contestant], options) for contestant in contestants])

    def contestants(self):
        return recipe.iterations(self)
