"""A peer: DeepSpeed's ZeRO-1 over bfloat16 parameters, with float32 masters and state.

A round is backward() and step() of DeepSpeed's engine. Backward computes nothing (given_gradients.py): what
takes time is what DeepSpeed does with the gradients: reduce them over the ranks, update the rank's share of the
masters, and gather the parameters. Driven as round_protocol.py says.
"""

import argparse
import ctypes
import os

import bench_models
import gloo_group
import round_protocol
import torch
from given_gradients import Model


# No other contestant clips, which is the default, or looks for infinities. Among the ways to reduce, this
# one copies least.
_CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True, "check_grad_overflow": False},
    "gradient_clipping": 0.0,
    "zero_optimization": {
        "stage": 1,
        "compute_grad_norm": False,
        "reduce_scatter": False,
        "reduce_bucket_size": 25 * 1024 * 1024 // 2,  # elements of two bytes; as DDP's default
    },
    "steps_per_print": None,
}


def _keep_freed_memory():
    """DeepSpeed allocates its buffers anew in every step. Memory that the process has given back to the
    system costs it a page fault for every 4 KiB."""
    m_trim_threshold, m_mmap_max = -1, -4  # malloc.h
    libc = ctypes.CDLL(None)
    if not libc.mallopt(m_trim_threshold, 2**31 - 1) or not libc.mallopt(m_mmap_max, 0):
        raise RuntimeError("mallopt refused an option")


def _engine(arguments):
    # Read when it is imported.
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ["LOCAL_RANK"] = str(arguments.rank)
    import deepspeed
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    model = Model(arguments.layers, torch.bfloat16, 1 + arguments.rank)
    optimizer = DeepSpeedCPUAdam(model.parameters(), lr=0.01, adamw_mode=False)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=_CONFIG)
    return engine, deepspeed.__version__


def main():
    driver = round_protocol.Driver()
    parser = argparse.ArgumentParser(description=__doc__)
    gloo_group.add_arguments(parser)
    parser.add_argument("--layers", type=int, default=20)
    arguments = parser.parse_args()
    _keep_freed_memory()
    gloo_group.join(arguments)
    engine, version = _engine(arguments)

    def reduce_and_step():
        engine.backward(engine())
        engine.step()

    driver.serve(
        reduce_and_step,
        lambda: bench_models.check(list(engine.module.parameters())),
        {"torch": torch.__version__, "deepspeed": version},
    )


if __name__ == "__main__":
    main()
