"""That what `optshard-server --memory-need` says is enough: a server in a cgroup with that limit."""

import contextlib
import json
import os
import subprocess
import tempfile
import time
import unittest

from tests.testing import memory_cgroup

_SERVER = "server/node/optshard-server"
_COORDINATOR = "server/coordinator/optshard-coordinator"
_TRAINER = "examples/optshard-recipe"
_PATIENCE_S = 120
# Of the recipe: so many parameters that the allowance for the server itself is not all there is.
_LAYERS, _WIDTH = 20, 1000
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
    def await_file(self, name, job, maker):
        deadline = time.monotonic() + _PATIENCE_S
        while not os.path.exists(job.path(name)):
            self.assertLess(time.monotonic(), deadline, job.said(maker))
            time.sleep(0.02)

    def train(self, plane, saves, group, job):
        """60 steps of two ranks at a server in the group, with checkpoints of some of them."""
        options = ["--checkpoint-dir=" + job.path("checkpoints"), "--checkpoint-every=10", "--keep-last=1"]
        coordinator = job.start(
            "coordinator", _COORDINATOR, "--job=recipe", "--world-size=2", "--listen=127.0.0.1:0",
            "--port-file=" + job.path("port"), *(options if saves else []))
        self.await_file("port", job, "coordinator")
        address = "127.0.0.1:%d" % int(job.said("port"))
        server = job.start("server", *group.within(
            _SERVER, "--job=recipe", "--node-ranks=0-1", "--plane=" + plane, "--coordinator=" + address,
            "--socket=" + job.path("socket")))
        self.await_file("socket", job, "server")
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
        self.assertEqual("saved a checkpoint" in job.said("coordinator"), saves)

    def check(self, plane, saves):
        """That a server with exactly the limit that it needs lives, and that it needs that."""
        need = _need(plane)
        ranks = need["node_bytes"] + (need["snapshot_bytes"] if saves else 0)
        allowance = need["server_bytes"] - need["node_bytes"] - need["snapshot_bytes"]
        name = "optshard-test-%d-%s-%d" % (os.getpid(), plane, saves)
        try:
            group = memory_cgroup.MemoryCgroup(name, ranks + allowance)
        except memory_cgroup.NoMemoryCgroup as none:
            self.skipTest(str(none))
        with group, Job() as job:
            self.train(plane, saves, group, job)
            self.assertEqual(group.killed(), 0)
        print("%s, %s checkpoints: at most %d bytes, of %d for the ranks and %d for the server" % (
            plane, "with" if saves else "without", group.peak, ranks, allowance))
        # An owner that copies nothing twice may need less for a snapshot.
        self.assertGreater(group.peak, 0.95 * need["node_bytes"])
        self.assertLess(group.peak, ranks + 0.75 * allowance)

    def test_a_server_with_the_limit_that_it_needs_trains(self):
        for plane in ("shm", "gloo"):
            with self.subTest(plane=plane):
                self.check(plane, saves=False)

    def test_a_server_with_the_limit_that_it_needs_saves_checkpoints(self):
        for plane in ("shm", "gloo"):
            with self.subTest(plane=plane):
                self.check(plane, saves=True)


if __name__ == "__main__":
    unittest.main()
