"""iteration_recipe: a whole iteration of the recipe, two ranks with one thread each, on one host."""

import recipe
from harness.benchmark import Benchmark


class IterationRecipe(Benchmark):
    name = "iteration_recipe"
    title = (
        "forward, backward, step and zero_grad of %s, 20 rows, MSE, Adam, 2 ranks, 1 thread each"
        % recipe.TITLE
    )
    limits_add_up = True
    # Rounding grows from iteration to iteration: Adam scales the smallest gradients up.
    result_tolerance = 1e-3

    def contestants(self):
        return [
            *recipe.iterations(self),
            self.program(
                "forward_backward",
                "forward and backward alone",
                "limit: computation",
                "optshard-bench-iteration",
                ["--nostep"],
            ),
            self.program(
                "gradients_dropped",
                "forward and backward, no gradient kept",
                "reference",
                "optshard-bench-iteration",
                ["--nostep", "--drop_gradients"],
            ),
            recipe.memory_bound(self, "memory bound of the one-pass step", world_size=2, replicas=2),
        ]
