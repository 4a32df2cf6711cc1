"""step_8bit: the step of step_shm with slots of 8 bits, beside the same with float32 slots."""

import recipe
from harness.benchmark import Benchmark, Part

# Of Adam, for each parameter: 4 for each replica's gradient, read; 4 of the parameter, read; 4 for each
# replica's parameter, written; the slots' codes and scales, read and written. The bound is measured by a
# step with float32 slots, which moves 36, over as many fewer parameters.
_REPLICAS = 2
_BYTES_OF_FLOAT32 = 24 + 4 * _REPLICAS + 4 * (_REPLICAS - 1)
_BYTES_OF_SLOTS = {"int8_companded": 2 * 2 * (1 + 2 / 32), "int8_dynamic": 2 * 2 * (1 + 4 / 256)}


class Step8Bit(Benchmark):
    name = "step_8bit"
    title = (
        "reduce, update and publish of %s, Adam, 2 ranks, 1 thread each, gradients in place" % recipe.TITLE
    )
    # Slots are rounded to 8 bits in every step.
    result_tolerance = 1e-2

    def _step(self, role, state_dtype, simd="best"):
        arguments = ["--gradients=reduce", "--plane=shm", "--state_dtype=" + state_dtype, "--simd=" + simd]
        name, title = state_dtype, "optshard, %s slots" % state_dtype
        if simd != "best":
            name, title = "%s_%s" % (name, simd), "%s, %s" % (title, simd.upper())
        return self.sharded(name, title, role, "optshard-bench-step", arguments, same_result=True)

    def parts(self):
        for state_dtype, slot_bytes in _BYTES_OF_SLOTS.items():
            moved = 4 * _REPLICAS + 4 + 4 * _REPLICAS + slot_bytes
            contestants = [
                self._step("ours", state_dtype),
                self._step("reference", state_dtype, simd="avx2"),
                self._step("peer", "float32"),
                recipe.memory_bound(
                    self,
                    "memory bound of the one-pass step, %.1f bytes a parameter" % moved,
                    world_size=2,
                    replicas=_REPLICAS,
                    parameters=int(recipe.PARAMETERS * moved / _BYTES_OF_FLOAT32),
                ),
            ]
            title = "%s, %s slots beside float32 ones" % (self.title, state_dtype)
            yield Part("step_8bit_" + state_dtype, title, contestants)
