"""step_gloo: optimizer step plus publish of the recipe, two ranks with one thread each, over Gloo."""

import os
import shutil
import socket
import tempfile

from harness.contestant import Contestant

TITLE = "step plus publish of 20 x Linear(2000, 2000), Adam, 2 ranks, 1 thread each, gradients in place"
WORLD_SIZE = 2
PARAMETERS = 20 * (2000 * 2000 + 2000)

_PEERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers")
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    # All over the loopback interface, whatever the host's name resolves to.
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def _free_port():
    """Free now; whoever takes it before rank 0 listens there makes the contestant fail, audibly."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class StepGloo:
    """Makes the contestants; close() removes what they met in."""

    name = "step_gloo"
    title = TITLE

    def __init__(self, binaries, python, step_timeout_s):
        self._binaries = binaries
        self._python = python
        self._step_timeout_s = step_timeout_s
        self._directory = tempfile.mkdtemp(prefix="optshard-bench-")

    def close(self):
        shutil.rmtree(self._directory, ignore_errors=True)

    def _rendezvous(self, name):
        return os.path.join(self._directory, name)

    def _python_contestant(self, name, title, role, script, arguments, same_result=False):
        commands = [
            [
                self._python,
                os.path.join(_PEERS, script),
                "--rank=%d" % rank,
                "--world_size=%d" % WORLD_SIZE,
                "--rendezvous=" + self._rendezvous(name),
                "--timeout_s=%g" % self._step_timeout_s,
                *arguments,
            ]
            for rank in range(WORLD_SIZE)
        ]
        return Contestant(name, title, role, commands, _ENVIRONMENT, same_result)

    def _optimizer(self, name, title, role, optimizer):
        arguments = ["--optimizer=" + optimizer]
        return self._python_contestant(name, title, role, "optimizer_step.py", arguments, True)

    def _program(self, name, title, role, program, arguments_of_rank, same_result=False):
        path = os.path.join(self._binaries, program)
        commands = [[path, *arguments_of_rank(rank)] for rank in range(WORLD_SIZE)]
        return Contestant(name, title, role, commands, _ENVIRONMENT, same_result)

    def _ours(self):
        address = "127.0.0.1:%d" % _free_port()
        return self._program(
            "ours",
            "optshard",
            "ours",
            "optshard-bench-step",
            lambda rank: [
                "--rank=%d" % rank,
                "--world_size=%d" % WORLD_SIZE,
                "--embedded_coordinator=" + address,
            ],
            True,
        )

    def _plane_transfer(self):
        meeting_place = self._rendezvous("transfer_plane")
        os.mkdir(meeting_place)
        return self._program(
            "transfer_plane",
            "gloo transfer (optshard's plane)",
            "limit: transfer",
            "optshard-bench-transfer",
            lambda rank: [
                "--rank=%d" % rank,
                "--world_size=%d" % WORLD_SIZE,
                "--rendezvous=" + meeting_place,
                "--elements=%d" % PARAMETERS,
                "--timeout=%gs" % self._step_timeout_s,
            ],
        )

    def _memory_bound(self):
        return self._program(
            "memory",
            "memory bound of the update",
            "limit: memory",
            "optshard-bench-memory",
            lambda rank: ["--elements=%d" % (PARAMETERS // WORLD_SIZE)],
        )

    def contestants(self):
        return [
            self._ours(),
            self._optimizer("zero", "torch ZeRO", "peer", "zero"),
            self._optimizer("zero_bucket_view", "torch ZeRO, bucket view", "peer", "zero_bucket_view"),
            self._optimizer("oss", "fairscale OSS", "peer", "oss"),
            self._optimizer("replicated", "torch Adam, replicated", "reference", "replicated"),
            self._python_contestant(
                "transfer_torch",
                "gloo transfer (torch)",
                "limit: transfer",
                "gloo_transfer.py",
                ["--elements=%d" % PARAMETERS],
            ),
            self._plane_transfer(),
            self._memory_bound(),
        ]
