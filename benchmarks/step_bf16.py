"""step_bf16: the step of step_shm with bfloat16 parameters and gradients, float32 masters and state."""

import recipe
from harness.benchmark import Benchmark

# Of Adam with masters, for each parameter: 24 of master and slots, read and written; 2 for each
# replica's gradient, read; 2 for each replica's parameter, written. The bound is measured by a step in
# float32, which moves 36, over as many fewer parameters.
_REPLICAS = 2
_BYTES = 24 + 2 * _REPLICAS + 2 * _REPLICAS
_BYTES_OF_FLOAT32 = 24 + 4 * _REPLICAS + 4 * (_REPLICAS - 1)


class StepBf16(Benchmark):
    name = "step_bf16"
    title = (
        "reduce, update and publish of %s in bfloat16 with float32 masters, Adam, 2 ranks, 1 thread each, "
        "gradients in place" % recipe.TITLE
    )
    # The peers round averages of gradients to bfloat16; ours stay in float32.
    result_tolerance = 1e-2

    @staticmethod
    def _ours(start, name, title, role, *arguments):
        arguments = ["--gradients=reduce", "--dtype=bfloat16", "--master_weights", *arguments]
        return start(name, title, role, "optshard-bench-step", arguments, same_result=True)

    def _peer(self, name, title, optimizer):
        arguments = ["--optimizer=" + optimizer, "--all_reduce", "--dtype=bfloat16", "--masters"]
        return self.peer(name, title, "peer", "optimizer_step.py", arguments, same_result=True)

    def contestants(self):
        return [
            self._ours(self.sharded, "ours", "optshard", "ours", "--plane=shm"),
            self._ours(self.attached, "attached", "optshard, attached to a server", "reference"),
            self._peer("all_reduce_adam", "all-reduce + torch Adam on masters, replicated", "replicated"),
            self._peer("all_reduce_zero", "all-reduce + torch ZeRO on masters", "zero_bucket_view"),
            self._peer("all_reduce_oss", "all-reduce + fairscale OSS on masters", "oss"),
            self.peer("deepspeed", "DeepSpeed ZeRO-1", "peer", "deepspeed_step.py", [], same_result=True),
            recipe.memory_bound(
                self,
                "memory bound of the one-pass step, %d bytes a parameter" % _BYTES,
                world_size=2,
                replicas=_REPLICAS,
                parameters=recipe.PARAMETERS * _BYTES // _BYTES_OF_FLOAT32,
            ),
        ]
