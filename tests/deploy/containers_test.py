"""The images without a container engine: the same roots, made by the same script, as the same user.

Processes of a pod share a PID namespace here, or do not, as shareProcessNamespace has it.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.getcwd())
from tests.deploy import kubernetes_objects as k8s  # noqa: E402

_MAKE_ROOT = "deploy/docker/make_root.sh"
_CONTAINER = "tests/deploy/container.sh"
_GLOO = "common/dataplane/gloo/optshard_gloo.so"
_COORDINATOR = "server/coordinator/optshard-coordinator"
_SERVER = "server/node/optshard-server"
_TRAINER = "examples/quickstart/trainer"
_CLIENT = "install/liboptshard_client.so"
_ROOT = os.path.dirname(os.path.realpath("WORKSPACE"))
_USER = 10001

_PATIENCE_S = 60
_PAUSE_S = 0.02
_LARGEST_SERVER_BYTES = 64 << 20


def _size(folder):
    return sum(os.lstat(os.path.join(path, name)).st_size
               for path, _, names in os.walk(folder) for name in names)


def _make(root, *arguments):
    subprocess.run([os.path.join(_ROOT, _MAKE_ROOT), root, *arguments], check=True,
                   timeout=_PATIENCE_S, stderr=subprocess.PIPE)


def _without(arguments, *flags):
    return [each for each in arguments if each.partition("=")[0] not in flags]


def _dockerfiles():
    folder = os.path.join(_ROOT, "deploy/docker")
    for name in sorted(os.listdir(folder)):
        if name.endswith("Dockerfile"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                yield name, file.read()


class Dockerfiles(unittest.TestCase):
    def test_Targets_AreThere_AndScripts(self):
        for name, text in _dockerfiles():
            with self.subTest(file=name):
                labels = re.findall(r"//([\w/]+):([\w.-]+)", text)
                self.assertNotEqual(labels, [])
                for package, target in labels:
                    with open(os.path.join(_ROOT, package, "BUILD.bazel"), encoding="utf-8") as file:
                        self.assertIn('name = "%s"' % target, file.read())
                    # What is built is what is packed.
                    self.assertIn("bazel-bin/%s/%s" % (package, target), text)
                for script in re.findall(r"deploy/docker/\w+\.sh|tools/[\w/.-]+\.txt", text):
                    self.assertTrue(os.path.exists(os.path.join(_ROOT, script)), script)

    def test_LastStages_RunAsAUserWithoutRights_WhatTheyHave(self):
        for name, text in _dockerfiles():
            for stage in re.split(r"(?m)^FROM ", text)[2:]:
                with self.subTest(file=name, stage=stage.splitlines()[0]):
                    inherits = stage.startswith("optshard-")
                    self.assertEqual(re.findall(r"(?m)^USER (.*)$", stage),
                                     [] if inherits else ["%d:%d" % (_USER, _USER)])
                    for program in re.findall(r'ENTRYPOINT \["/usr/bin/([\w-]+)"\]', stage):
                        self.assertRegex(text, r"bazel-bin/[\w/]+/%s\b" % program)

    def test_Images_ComeFromArguments_WithDefaults(self):
        for name, text in _dockerfiles():
            with self.subTest(file=name):
                for image in re.findall(r"(?m)^FROM (\S+) AS", text):
                    argument = re.fullmatch(r"\$\{(\w+)\}", image)
                    if argument:
                        self.assertRegex(text, r"(?m)^ARG %s=\S+$" % argument.group(1))
                    else:
                        self.assertIn(" AS %s\n" % image, text)


class Images(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        # Its parents must be open to the user of the images.
        os.chmod(folder.name, 0o755)
        cls.roots = folder.name
        _make(cls.root("coordinator"), _COORDINATOR)
        _make(cls.root("server"), _SERVER, "--libraries-of=" + _GLOO)

    @classmethod
    def root(cls, name):
        return os.path.join(cls.roots, name)


class Roots(Images):
    def test_OfServers_AreSmall_AndHaveNoShell(self):
        for name in ("coordinator", "server"):
            with self.subTest(root=name):
                self.assertLess(_size(self.root(name)), _LARGEST_SERVER_BYTES)
                self.assertEqual(os.listdir(os.path.join(self.root(name), "usr/bin")),
                                 ["optshard-" + name])
                self.assertFalse(os.path.exists(os.path.join(self.root(name), "bin")))

    def test_OfTheServer_HasWhatItsPluginNeeds_AndLicences(self):
        self.assertTrue(os.path.exists(os.path.join(self.root("server"), "usr/lib/libgloo.so.0")))
        self.assertIn("libgrpc++1.51",
                      os.listdir(os.path.join(self.root("server"), "usr/share/doc")))

    def test_OfAProgramThatIsNotThere_IsAnError_NamingIt(self):
        with self.assertRaises(subprocess.CalledProcessError) as failed:
            _make(self.root("none"), "no/such/program")
        self.assertIn(b"no/such/program", failed.exception.stderr)


@unittest.skipUnless(os.geteuid() == 0, "only root can make namespaces and change the root")
class Containers(Images):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        _make(cls.root("trainer"), _TRAINER, "--libraries-of=" + _GLOO, "--library=" + _CLIENT)
        probe = subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"],
                               stderr=subprocess.PIPE)
        if probe.returncode != 0:
            raise unittest.SkipTest("no namespaces: %s" % probe.stderr.decode().strip())

    def setUp(self):
        self.volume = self.make_volume()
        self.logs = 0

    def make_volume(self):
        """As an emptyDir of Kubernetes: root's, open to all."""
        volume = tempfile.mkdtemp(dir=self.roots)
        self.addCleanup(shutil.rmtree, volume)
        os.chmod(volume, 0o777)
        return volume

    def path(self, name):
        return os.path.join(self.volume, name)

    def start(self, root, *command, own_pids=True, variables=(), volumes=None, hostname="pod"):
        """`own_pids`: process 1 of a PID namespace; otherwise in that of the other containers.

        `volumes`: folders by the paths where they are mounted.
        """
        self.logs += 1
        log = open(os.path.join(self.roots, "log-%d" % self.logs), "w+", encoding="utf-8")
        isolate = ["unshare", "--mount", "--uts"]
        isolate += ["--pid", "--fork", "--kill-child"] if own_pids else []
        volumes = volumes or {"/run/optshard": self.volume}
        mounts = ["%s:%s" % (folder, path) for path, folder in volumes.items()]
        process = subprocess.Popen(
            [*isolate, "bash", "-c",
             "CONTAINER_ENVIRONMENT=(%s) CONTAINER_VOLUMES=(%s) CONTAINER_HOSTNAME=%s; source \"$0\"" % (
                 shlex.join(variables), shlex.join(mounts), shlex.quote(hostname)),
             os.path.join(_ROOT, _CONTAINER), self.root(root), *command],
            stdout=log, stderr=subprocess.STDOUT)
        process.log = log.name

        def end():
            process.kill()
            process.wait()
            log.close()

        self.addCleanup(end)
        return process

    def output(self, process):
        with open(process.log, encoding="utf-8") as log:
            return log.read()

    def await_file(self, name, process):
        self.await_path(self.path(name), process)

    def await_path(self, path, process):
        deadline = time.monotonic() + _PATIENCE_S
        while not os.path.exists(path):
            self.assertIsNone(process.poll(), self.output(process))
            self.assertLess(time.monotonic(), deadline, "no file " + path)
            time.sleep(_PAUSE_S)

    def start_coordinator(self, *flags, own_pids=False, volumes=None):
        process = self.start("coordinator", "/usr/bin/optshard-coordinator",
                             "--port-file=/run/optshard/port", *(flags or ("--world-size=2",)),
                             own_pids=own_pids, volumes=volumes)
        self.await_file("port", process)
        with open(self.path("port"), encoding="ascii") as port:
            return process, "127.0.0.1:%d" % int(port.read())

    def start_server(self, coordinator, *flags, own_pids=False):
        process = self.start("server", "/usr/bin/optshard-server", "--node-ranks=0-1",
                             "--coordinator=" + coordinator, "--socket=/run/optshard/own/socket",
                             "--make-socket-folder", *flags, own_pids=own_pids)
        self.await_file("own/socket", process)
        return process

    def start_trainer(self, rank, coordinator, own_pids=False):
        return self.start("trainer", "/usr/bin/trainer", own_pids=own_pids, variables=(
            "RANK=%d" % rank, "WORLD_SIZE=2", "OPTSHARD_COORDINATOR=" + coordinator,
            "OPTSHARD_ATTACH=unix:/run/optshard/own/socket"))

    def end_of(self, process):
        return process.wait(_PATIENCE_S), self.output(process)

    def test_PodThatSharesItsProcesses_TrainsToTheEnd_InOnePassOrOverGloo(self):
        for plane in ("shm", "gloo"):
            with self.subTest(plane=plane):
                coordinator_process, coordinator = self.start_coordinator()
                server = self.start_server(coordinator, "--plane=" + plane)
                trainers = [self.start_trainer(rank, coordinator) for rank in range(2)]
                for trainer in trainers:
                    code, output = self.end_of(trainer)
                    self.assertEqual(code, 0, output + self.output(server))
                    self.assertIn("step 200 loss", output)
                self.assertEqual(os.stat(self.path("own")).st_uid, _USER)
                for process in (server, coordinator_process):
                    process.terminate()
                    self.assertEqual(process.wait(_PATIENCE_S), 0, self.output(process))
                os.remove(self.path("port"))

    def run_pods(self, overlay, checkpoints):
        """Runs the pods of an overlay to the end, each with its own host's name and socket.

        Returns what the trainers wrote.
        """
        objects = k8s.render(overlay)
        [steward] = [each for pod in k8s.pods(objects) for each in pod.coordinators()]
        arguments = _without(steward["args"], "--listen", "--probe-listen")
        coordinator_process, coordinator = self.start_coordinator(
            *arguments, volumes={"/run/optshard": self.volume, "/checkpoints": checkpoints})
        [pod] = [pod for pod in k8s.pods(objects) if pod.trainers()]
        servers, trainers = [], []
        for index in range(pod.count):
            volumes = {"/run/optshard": self.make_volume(), "/checkpoints": checkpoints}
            name = "node-%d" % index
            [server] = pod.servers()
            given = ["%s=%s" % (flag, value) if value else flag for flag, value in
                     k8s.flags(server, k8s.in_pod(server, index)).items()]
            given = _without(given, "--coordinator", "--owner-listen", "--probe-listen")
            servers.append(self.start("server", "/usr/bin/optshard-server", *given,
                                      "--coordinator=" + coordinator, own_pids=False,
                                      volumes=volumes, hostname=name))
            self.await_path(os.path.join(volumes["/run/optshard"], "own/socket"), servers[-1])
            for trainer in pod.trainers():
                variables = k8s.in_pod(trainer, index)
                variables["OPTSHARD_COORDINATOR"] = coordinator
                trainers.append(self.start(
                    "trainer", "/usr/bin/trainer", *trainer.get("args", []), own_pids=False,
                    variables=["%s=%s" % each for each in variables.items()], volumes=volumes,
                    hostname=name))
        written = []
        for trainer in trainers:
            code, output = self.end_of(trainer)
            self.assertEqual(code, 0, output + "".join(map(self.output, servers)))
            written.append(output)
        for server in servers:
            server.terminate()
            self.assertEqual(server.wait(_PATIENCE_S), 0, self.output(server))
        self.assertEqual(coordinator_process.wait(_PATIENCE_S), 0, self.output(coordinator_process))
        os.remove(self.path("port"))
        return "".join(written)

    def test_PodsOfAnOverlay_TrainToTheEnd_AndBeginAgainFromTheirCheckpoint(self):
        for overlay, ranks in (("one-node-cpu", 2), ("multi-rank-nodes-cpu", 4)):
            with self.subTest(overlay=overlay):
                checkpoints = self.make_volume()
                written = self.run_pods(overlay, checkpoints)
                for rank in range(ranks):
                    self.assertEqual(written.count("rank %d step " % rank), 4, written)
                self.assertIn("step-000000000200", os.listdir(checkpoints))
                # As if it had ended before that.
                shutil.rmtree(os.path.join(checkpoints, "step-000000000200"))
                again = self.run_pods(overlay, checkpoints)
                for rank in range(ranks):
                    self.assertEqual(re.findall(r"rank %d step (\d+)" % rank, again), ["150", "200"])

    def test_ClientOfInstalledTrainers_FindsAllItsLibraries_UnderTheNameThatTheyAskFor(self):
        with open(os.path.join(_ROOT, "install/version.bzl"), encoding="utf-8") as file:
            version = re.search(r'"([\d.]+)"', file.read()).group(1)
        code, output = self.end_of(self.start(
            "trainer", "/lib64/ld-linux-x86-64.so.2", "--list",
            "/usr/lib/optshard/liboptshard_client.so." + version))
        self.assertEqual(code, 0, output)
        self.assertIn("libtorch_cpu.so => /usr/lib/optshard/", output)
        self.assertNotIn("not found", output)

    def test_TrainerOfAnotherPidNamespace_IsToldToShareOne(self):
        _, coordinator = self.start_coordinator()
        self.start_server(coordinator)
        code, output = self.end_of(self.start_trainer(0, coordinator, own_pids=True))
        self.assertEqual(code, 1)
        self.assertIn("share one PID namespace", output)

    def test_ProcessOneOfItsNamespace_EndsInGoodOrder(self):
        coordinator_process, coordinator = self.start_coordinator(own_pids=True)
        server = self.start_server(coordinator, own_pids=True)
        for process in (server, coordinator_process):
            # unshare passes no signal on: the program is its child.
            with open("/proc/%d/task/%d/children" % (process.pid, process.pid),
                      encoding="ascii") as children:
                os.kill(int(children.read()), signal.SIGTERM)
            self.assertEqual(process.wait(_PATIENCE_S), 0, self.output(process))
            self.assertIn("stopped", self.output(process))


if __name__ == "__main__":
    unittest.main()
