"""optshard-server as a supervisor runs it: probes, a coordinator that comes late, memory, drain."""

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import unittest

_COORDINATOR = "server/coordinator/optshard-coordinator"
_SERVER = "server/node/optshard-server"
_TRAINER = "tests/server/node/node_trainer"
_HEALTH_PROBE = "tests/testing/health-probe"
_GRPC_CLI = "external/grpc_cli/grpc_cli"

# Slow machines; no test waits as long as that when things work.
_PATIENCE_S = 60
_FOR_EVER = "1000000000"  # steps


def _run(*command, **kwargs):
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_PATIENCE_S,
        **kwargs
    )


def health(port, service):
    """What a probe of the service hears: "SERVING", "NOT_SERVING", "NOT_FOUND" or "no answer"."""
    return _run(_HEALTH_PROBE, str(port), service).stdout.strip()


def listens(path):
    """Whether somebody does: a socket that is bound may not listen yet."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(path)
        except OSError:
            return False
    return True


class Supervised(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.started = 0

    def start(self, *command):
        self.started += 1
        log = open(os.path.join(self.folder, "log-%d" % self.started), "w+", encoding="utf-8")
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=log, text=True)
        process.log = log.name

        def end():
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
            log.close()

        self.addCleanup(end)
        return process

    def await_(self, condition, what):
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.02)

    def logged(self, process):
        with open(process.log, encoding="utf-8") as log:
            return log.read()

    def await_log(self, process, text):
        self.await_(lambda: text in self.logged(process) or process.poll() is not None,
                    "no such line: " + text)
        self.assertIn(text, self.logged(process))

    def free_port(self):
        """Of a port file of a coordinator that has ended: nobody else was given it since."""
        port_file = os.path.join(self.folder, "free")
        process = self.start(_COORDINATOR, "--world-size=1", "--port-file=" + port_file)
        self.await_(lambda: os.path.exists(port_file), "no port")
        process.terminate()
        process.wait(_PATIENCE_S)
        with open(port_file, encoding="ascii") as port:
            number = int(port.read())
        os.remove(port_file)
        return number

    def start_coordinator(self, *flags):
        port_file = os.path.join(self.folder, "port")
        process = self.start(_COORDINATOR, "--world-size=2", "--job=test",
                             "--port-file=" + port_file, *flags)
        self.await_(lambda: os.path.exists(port_file), "no coordinator")
        with open(port_file, encoding="ascii") as port:
            return process, "127.0.0.1:%d" % int(port.read())

    def socket(self):
        return os.path.join(self.folder, "own", "socket")

    def start_server(self, coordinator, *flags):
        return self.start(_SERVER, "--node-ranks=0-1", "--job=test", "--coordinator=" + coordinator,
                          "--socket=" + self.socket(), "--make-socket-folder", *flags)


class Probes(Supervised):
    def test_OfACoordinator_AreAtAPortOfTheirOwn_WithNothingElse(self):
        port = self.free_port()
        process, _ = self.start_coordinator("--probe-listen=127.0.0.1:%d" % port)
        self.await_(lambda: health(port, "readiness") == "SERVING", "not ready")
        self.assertEqual(health(port, "liveness"), "SERVING")
        services = _run(_GRPC_CLI, "ls", "127.0.0.1:%d" % port,
                        env={**os.environ, "no_grpc_proxy": "127.0.0.1"}).stdout.split()
        self.assertEqual([name for name in services if name.startswith("optshard")], [])
        process.terminate()
        self.assertEqual(process.wait(_PATIENCE_S), 0)

    def test_OfAServer_AreAliveBeforeTheCoordinatorIsKnown_AndReadyWhereTrainersMayAttach(self):
        port = self.free_port()
        flags = ("--probe-listen=127.0.0.1:%d" % port,)
        waiting = self.start_server("no-such-host.invalid:4700", *flags)
        self.await_log(waiting, "no-such-host.invalid:4700 is not known")
        self.assertEqual(health(port, "liveness"), "SERVING")
        self.assertEqual(health(port, "readiness"), "NOT_SERVING")
        waiting.terminate()
        self.assertEqual(waiting.wait(_PATIENCE_S), 0, self.logged(waiting))

        _, coordinator = self.start_coordinator()
        server = self.start_server(coordinator, *flags)
        self.await_(lambda: health(port, "readiness") == "SERVING", "not ready")
        self.assertTrue(os.path.exists(self.socket()))
        self.assertEqual(health(port, "liveness"), "SERVING")
        server.terminate()
        self.assertEqual(server.wait(_PATIENCE_S), 0, self.logged(server))

    def test_PortThatIsTaken_IsAnErrorAtTheStart(self):
        _, coordinator = self.start_coordinator()
        server = self.start_server(coordinator, "--probe-listen=" + coordinator)
        self.assertEqual(server.wait(_PATIENCE_S), 1)
        self.assertIn("cannot listen at " + coordinator, self.logged(server))


class Coordinator(Supervised):
    def test_NameThatIsNeverKnown_EndsTheServerAfterTheTimeout(self):
        server = self.start_server("no-such-host.invalid:4700", "--coordinator-timeout=100ms")
        self.assertEqual(server.wait(_PATIENCE_S), 1)
        log = self.logged(server)
        self.assertIn("waiting for it, for at most", log)
        self.assertRegex(log, r"UNAVAILABLE: .*no-such-host.invalid:4700 is not known.*waited for")


class Drain(Supervised):
    def test_OfAServerThatSteps_EndsItInGoodOrder_AndTellsTrainers(self):
        _, coordinator = self.start_coordinator()
        port_file = os.path.join(self.folder, "owner-port")
        server = self.start_server(coordinator, "--port-file=" + port_file)
        self.await_(lambda: os.path.exists(port_file), "no server")
        trainers = [self.start(_TRAINER, self.socket(), str(rank), "2", _FOR_EVER)
                    for rank in range(2)]
        with open(port_file, encoding="ascii") as port:
            owner_port = int(port.read())
        # As a whole it serves once all its ranks can step.
        self.await_(lambda: health(owner_port, "") == "SERVING", "no steps")
        drained = _run(_SERVER, "--drain", "--socket=" + self.socket())
        self.assertEqual(drained.returncode, 0, drained.stdout)
        self.assertRegex(drained.stdout, r"process \d+, has ended")
        self.assertEqual(server.wait(_PATIENCE_S), 0, self.logged(server))
        self.assertIn("stopped", self.logged(server))
        for trainer in trainers:
            self.assertEqual(trainer.wait(_PATIENCE_S), 1)
            self.assertIn("shutting down", self.logged(trainer))

    def test_NobodyThere_IsAnErrorNamingTheSocket(self):
        drained = _run(_SERVER, "--drain", "--socket=" + self.socket())
        self.assertEqual(drained.returncode, 1)
        self.assertIn(self.socket(), drained.stdout)

    def test_ServerThatHangs_IsNamedAfterTheTimeout(self):
        _, coordinator = self.start_coordinator()
        server = self.start_server(coordinator, "--no-keeper")
        self.await_(lambda: listens(self.socket()), "no socket")
        server.send_signal(signal.SIGSTOP)
        drained = _run(_SERVER, "--drain", "--socket=" + self.socket(), "--timeout=50ms")
        self.assertEqual(drained.returncode, 1)
        self.assertIn("process %d, has not ended within 50ms" % server.pid, drained.stdout)


class MemoryNeed(unittest.TestCase):
    def need(self, *flags):
        result = _run(_SERVER, "--memory-need", *flags)
        self.assertEqual(result.returncode, 0, result.stdout)
        return json.loads(result.stdout.splitlines()[-1]), result.stdout

    def test_OfACount_SaysTheSameToPeopleAndPrograms(self):
        need, text = self.need("--node-ranks=0-1", "--parameters=80000000", "--threads=1")
        self.assertEqual((need["world_size"], need["ranks"]), (2, "0-1"))
        # Parameters, gradients, and half of two slots, of four bytes each; two ranks.
        self.assertAlmostEqual(need["node_bytes"] / (2 * 80e6 * 12), 1, delta=0.02)
        self.assertAlmostEqual(need["snapshot_bytes"] / (80e6 * 12), 1, delta=0.02)
        self.assertGreater(need["server_bytes"], need["node_bytes"] + need["snapshot_bytes"])
        for count in (need["rank_bytes"], need["node_bytes"], need["server_bytes"]):
            self.assertIn(" %d\n" % count, text)

    def test_WrongInput_IsNamed(self):
        for flags, text in (
            (("--node-ranks=0",), "--parameters=N"),
            (("--node-ranks=0", "--parameters=1", "--model=x"), "--model=FILE"),
            (("--parameters=1",), "--node-ranks is missing"),
            (("--node-ranks=0-3", "--world-size=2", "--parameters=1"), "0-3"),
            (("--node-ranks=0", "--parameters=5", "--rule=adamm"), "adamm"),
            (("--node-ranks=0", "--model=/no/such/model.safetensors"), "/no/such"),
        ):
            with self.subTest(flags=flags):
                result = _run(_SERVER, "--memory-need", *flags)
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(text, result.stdout)


if __name__ == "__main__":
    unittest.main()
