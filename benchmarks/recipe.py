"""The recipe, 20 x Linear(2000, 2000), as the entries that measure it know it."""

LAYERS = 20
TITLE = "20 x Linear(2000, 2000)"
PARAMETERS = LAYERS * (2000 * 2000 + 2000)


def memory_bound(benchmark, title, world_size, replicas, parameters=PARAMETERS):
    """A limit: the memory traffic of a step of all ranks, each moving its share, and no arithmetic."""
    arguments = ["--elements=%d" % parameters, "--replicas=%d" % replicas]
    return benchmark.program(
        "memory", title, "limit: memory", "optshard-bench-memory", arguments, world_size
    )


def iterations(benchmark):
    """Whole iterations: ours and the peers'."""

    def ours(start, name, title, role, *arguments):
        arguments = ["--gradients=reduce", *arguments]
        return start(name, title, role, "optshard-bench-iteration", arguments, same_result=True)

    def peer(name, title, optimizer):
        arguments = ["--optimizer=" + optimizer]
        return benchmark.peer(name, title, "peer", "ddp_iteration.py", arguments, same_result=True)

    return [
        ours(benchmark.sharded, "ours", "optshard", "ours", "--plane=shm"),
        ours(benchmark.attached, "attached", "optshard, attached to a server", "reference"),
        ours(
            benchmark.sharded,
            "share_parameters",
            "optshard, share_parameters",
            "reference",
            "--plane=shm",
            "--share_parameters",
        ),
        peer("ddp_adam", "DDP + torch Adam, replicated", "replicated"),
        peer("ddp_zero", "DDP + torch ZeRO", "zero_bucket_view"),
        peer("ddp_oss", "DDP + fairscale OSS", "oss"),
    ]
