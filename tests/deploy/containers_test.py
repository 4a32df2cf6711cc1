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
from tests.tools import network_namespaces  # noqa: E402

_MAKE_ROOT = "deploy/docker/make_root.sh"
_CONTAINER = "tests/deploy/container.sh"
_HOSTS = "tools/cluster_hosts.sh"
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
class ContainerTest(Images):
    """Starts containers, and has no cases itself."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        _make(cls.root("trainer"), _TRAINER, "--libraries-of=" + _GLOO, "--library=" + _CLIENT)
        probe = subprocess.run(["unshare", "--mount", "--uts", "--pid", "--fork", "true"],
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

    def start(self, root, *command, own_pids=True, variables=(), volumes=None, hostname="pod", network=()):
        """`own_pids`: process 1 of a PID namespace; otherwise in that of the other containers.

        `volumes`: folders by the paths where they are mounted. `network`: the command that runs another one in a
        network of its own; otherwise in this host's.
        """
        self.logs += 1
        log = open(os.path.join(self.roots, "log-%d" % self.logs), "w+", encoding="utf-8")
        isolate = ["unshare", "--mount", "--uts"]
        isolate += ["--pid", "--fork", "--kill-child"] if own_pids else []
        volumes = volumes or {"/run/optshard": self.volume}
        mounts = ["%s:%s" % (folder, path) for path, folder in volumes.items()]
        process = subprocess.Popen(
            [*network, *isolate, "bash", "-c",
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

    def start_coordinator(self, *flags, address="127.0.0.1", **more):
        process = self.start("coordinator", "/usr/bin/optshard-coordinator",
                             "--port-file=/run/optshard/port", *(flags or ("--world-size=2",)),
                             **{"own_pids": False, **more})
        self.await_file("port", process)
        with open(self.path("port"), encoding="ascii") as port:
            return process, "%s:%d" % (address, int(port.read()))

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
        try:
            return process.wait(_PATIENCE_S), self.output(process)
        except subprocess.TimeoutExpired:
            return "nothing after %d s" % _PATIENCE_S, self.output(process)


class Containers(ContainerTest):
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


class Pods(network_namespaces.NetworkNamespaceTest, ContainerTest):
    """The pods of an overlay, each on a host of its own: a network namespace, and a host's name."""

    def setUp(self):
        network_namespaces.NetworkNamespaceTest.setUp(self)
        ContainerTest.setUp(self)
        self.hosts = "optshard-%d" % os.getpid()

    def make_hosts(self, count):
        subprocess.run([_HOSTS, "make", self.hosts, "%d" % count], check=True)
        self.addCleanup(self.remove_hosts)

    def remove_hosts(self):
        subprocess.run([_HOSTS, "remove", self.hosts], check=True)

    def place(self, index, checkpoints):
        return {"volumes": {"/run/optshard": self.make_volume(), "/checkpoints": checkpoints},
                "network": ["ip", "netns", "exec", "%s-host%d" % (self.hosts, index)],
                "hostname": "node-%d" % index, "own_pids": False}

    def start_pod(self, pod, index, coordinator, place):
        """The server, and the trainers of the pod."""
        [container] = pod.servers()
        given = ["%s=%s" % (flag, value) if value else flag for flag, value in
                 k8s.flags(container, k8s.in_pod(container, index)).items()]
        server = self.start("server", "/usr/bin/optshard-server", "--coordinator=" + coordinator,
                            *_without(given, "--coordinator", "--owner-listen", "--probe-listen"), **place)
        self.await_path(os.path.join(place["volumes"]["/run/optshard"], "own/socket"), server)
        trainers = []
        for container in pod.trainers():
            # An error is to end the test before its patience.
            variables = {**k8s.in_pod(container, index), "OPTSHARD_COORDINATOR": coordinator,
                         "OPTSHARD_JOIN_TIMEOUT": "%ds" % (_PATIENCE_S // 2)}
            trainers.append(self.start("trainer", "/usr/bin/trainer", *container.get("args", []),
                                       variables=["%s=%s" % each for each in variables.items()], **place))
        return server, trainers

    def run_pods(self, overlay, checkpoints):
        """Runs them to the end. What the trainers wrote, and what the servers wrote."""
        self.volume = self.make_volume()
        objects = k8s.render(overlay)
        [pod] = [pod for pod in k8s.pods(objects) if pod.trainers()]
        [steward] = [each for pod in k8s.pods(objects) for each in pod.coordinators()]
        self.make_hosts(pod.count)
        place = self.place(0, checkpoints)
        place["volumes"]["/run/optshard"] = self.volume
        coordinator_process, coordinator = self.start_coordinator(
            *_without(steward["args"], "--listen", "--probe-listen"), "--listen=192.0.2.1:0",
            address="192.0.2.1", **place)
        started = [self.start_pod(pod, index, coordinator, self.place(index, checkpoints))
                   for index in range(pod.count)]
        servers = [server for server, _ in started]
        written = ""
        for trainer in [trainer for _, trainers in started for trainer in trainers]:
            code, output = self.end_of(trainer)
            self.assertEqual(code, 0, output + "".join(map(self.output, servers)))
            written += output
        for server in servers:
            server.terminate()
        for process in [*servers, coordinator_process]:
            self.assertEqual(process.wait(_PATIENCE_S), 0, self.output(process))
        self.remove_hosts()
        return written, "".join(map(self.output, servers))

    def test_OfAnOverlay_TrainToTheEnd_AndBeginAgainFromTheirCheckpoint(self):
        for overlay, ranks, way in (("one-node-cpu", 2, "memory that all ranks share"),
                                    ("multi-rank-nodes-cpu", 4, "send messages over Gloo between the nodes")):
            with self.subTest(overlay=overlay):
                checkpoints = self.make_volume()
                written, servers_said = self.run_pods(overlay, checkpoints)
                self.assertIn(way, servers_said)
                for rank in range(ranks):
                    self.assertEqual(written.count("rank %d step " % rank), 4, written)
                self.assertIn("step-000000000200", os.listdir(checkpoints))
                # As if it had ended before that.
                shutil.rmtree(os.path.join(checkpoints, "step-000000000200"))
                again, _ = self.run_pods(overlay, checkpoints)
                for rank in range(ranks):
                    self.assertEqual(re.findall(r"rank %d step (\d+)" % rank, again), ["150", "200"])


if __name__ == "__main__":
    unittest.main()
