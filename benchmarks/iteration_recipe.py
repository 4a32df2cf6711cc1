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

    def contestants(self):
        return [
            recipe.our_iteration(self, "ours", "optshard", "ours"),
            recipe.our_iteration(
                self,
                "share_parameters",
                "optshard, share_parameters",
                "reference",
                "--share_parameters",
            ),
            recipe.ddp_iteration(self, "ddp_adam", "DDP + torch Adam, replicated", "replicated"),
            recipe.ddp_iteration(self, "ddp_zero", "DDP + torch ZeRO", "zero_bucket_view"),
            recipe.ddp_iteration(self, "ddp_oss", "DDP + fairscale OSS", "oss"),
            self.program(
                "forward_backward",
                "forward and backward alone",
                "limit: computation",
                "optshard-bench-iteration",
                ["--nostep"],
            ),
            recipe.memory_bound(self, "memory bound of the one-pass step", world_size=2, replicas=2),
        ]
