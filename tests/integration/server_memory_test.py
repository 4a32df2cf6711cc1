"""That what `optshard-server --memory-need` says is enough: a server in a cgroup with that limit."""

import contextlib
import json
import os
import subprocess
import tempfile
import time
import unittest

from tests.testing import memory_cgroup
from tests.testing.master_port import free_master_port

_SERVER = "server/node/optshard-server"
_COORDINATOR = "server/coordinator/optshard-coordinator"
_TRAINER = "examples/optshard-recipe"
_PATIENCE_S = 120
# Of the recipe: so many that the state counts, and the allowance for the server itself is not all there is.
_LAYERS, _WIDTH = 20, int(os.environ.get("SERVER_MEMORY_TEST_WIDTH", "1000"))
_PARAMETERS = _LAYERS * (_WIDTH * _WIDTH + _WIDTH)


def _need(plane):
    said = subprocess.run(
        [_SERVER, "--memory-need", "--node-ranks=0-1", "--parameters=%d" % _PARAMETERS, "--plane=" + plane],
        stdout=subprocess.PIPE, text=True, check=True, timeout=_PATIENCE_S).stdout
    return json.loads(said.splitlines()[-1])


class Job:
    """Coordinator, server and trainers, with a folder of their own. Use it by `with`, which ends them."""

    def __init__(self):
        self._running = contextlib.ExitStack()
        self._folder = self._running.enter_context(tempfile.TemporaryDirectory())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._running.close()

    def path(self, name):
        return os.path.join(self._folder, name)

    def start(self, name, *command, **more):
        log = self._running.enter_context(open(self.path(name), "w", encoding="utf-8"))
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, **more)
        self._running.callback(process.wait)
        self._running.callback(process.kill)
        return process

    def said(self, name):
        with open(self.path(name), encoding="utf-8") as log:
            return log.read()


class ServerMemory(unittest.TestCase):
    def train(self, plane, group, job):
        """60 steps of two ranks at a server in the group, with checkpoints of some of them."""
        address = "127.0.0.1:%d" % free_master_port()
        coordinator = job.start(
            "coordinator", _COORDINATOR, "--job=recipe", "--world-size=2", "--listen=" + address,
            "--checkpoint-dir=" + job.path("checkpoints"), "--checkpoint-every=10", "--keep-last=1")
        server = job.start(
            "server", _SERVER, "--job=recipe", "--node-ranks=0-1", "--plane=" + plane,
            "--coordinator=" + address, "--socket=" + job.path("socket"), preexec_fn=group.enter)
        deadline = time.monotonic() + _PATIENCE_S
        while not os.path.exists(job.path("socket")):
            self.assertLess(time.monotonic(), deadline, job.said("server"))
            time.sleep(0.02)
        trainers = [
            job.start("rank%d" % rank, _TRAINER, "--mode=sharded", "--rank=%d" % rank, "--world-size=2",
                      "--coordinator=" + address, "--attach=unix:" + job.path("socket"), "--steps=60",
                      "--layers=%d" % _LAYERS, "--width=%d" % _WIDTH)
            for rank in range(2)]
        for rank, trainer in enumerate(trainers):
            self.assertEqual(trainer.wait(_PATIENCE_S), 0, job.said("rank%d" % rank) + job.said("server"))
        for process in (server, coordinator):
            process.terminate()
            self.assertEqual(process.wait(_PATIENCE_S), 0, job.said("server"))
        self.assertIn("saved a checkpoint", job.said("coordinator"))

    def test_a_server_with_the_limit_that_it_needs_trains_and_saves(self):
        for plane in ("shm", "gloo"):
            with self.subTest(plane=plane):
                need = _need(plane)
                name = "optshard-test-%d" % os.getpid()
                try:
                    group = memory_cgroup.MemoryCgroup(name, need["server_bytes"])
                except memory_cgroup.NoMemoryCgroup as none:
                    self.skipTest(str(none))
                with group, Job() as job:
                    self.train(plane, group, job)
                    self.assertEqual(group.killed(), 0)
                print("%s: at most %d bytes, of %d" % (plane, group.peak, need["server_bytes"]))
                # The memory of the ranks is charged to it, and it has not counted what nobody needs.
                self.assertGreater(group.peak, 0.95 * need["node_bytes"])
                self.assertLessEqual(group.peak, need["server_bytes"])


if __name__ == "__main__":
    unittest.main()
