"""Ports for jobs that tests start as torchrun would."""

import socket


def free_master_port():
    """A port P such that P and P + 1 are free: rank 0 runs its coordinator at MASTER_PORT + 1."""
    for _ in range(100):
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
                return port
            except OSError:
                continue
    raise RuntimeError("no two neighbouring free ports")
