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


def our_iteration(benchmark, name, title, role, *arguments, world_size=2):
    arguments = ["--plane=shm", "--gradients=reduce", *arguments]
    return benchmark.sharded(
        name, title, role, "optshard-bench-iteration", arguments, world_size, same_result=True
    )


def ddp_iteration(benchmark, name, title, optimizer, *arguments):
    arguments = ["--optimizer=" + optimizer, *arguments]
    return benchmark.peer(name, title, "peer", "ddp_iteration.py", arguments, same_result=True)
