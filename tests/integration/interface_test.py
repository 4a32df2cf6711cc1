"""A job of several hosts: network namespaces with links between them, and no shared loopback."""

import json
import os
import select
import shutil
import socket
import subprocess
import tempfile
import time
import unittest

_COORDINATOR = "server/coordinator/optshard-coordinator"
_TRAINER = "tests/testing/test-trainer"
_GRPC_CLI = "external/grpc_cli/grpc_cli"

_HOSTS_MAKER = "tools/cluster_hosts.sh"
# What it gives to the hosts.
_ADDRESSES = ("192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4")
_LINK = "eth0"
# No test waits as long as that when things work.
_PATIENCE_S = 60


class Hosts(unittest.TestCase):
    """What the tests share. A subclass says how many hosts it has."""

    hosts = 0

    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("only root can make network namespaces")
        if shutil.which("ip") is None:
            self.skipTest("there is no ip (Debian's package iproute2)")
        self._cluster = "optshard-%d" % os.getpid()
        allowed = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
        if allowed.returncode != 0:
            self.skipTest("no network namespace: %s" % allowed.stderr.strip())
        made = subprocess.run([_HOSTS_MAKER, "make", self._cluster, str(self.hosts)],
                              capture_output=True, text=True, check=False)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.addCleanup(subprocess.run, [_HOSTS_MAKER, "remove", self._cluster], check=True)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self._port_file = os.path.join(folder.name, "port")

    def on(self, host, *command):
        # A proxy of the environment is not for these addresses.
        return ["env", "no_grpc_proxy=" + ",".join(_ADDRESSES), "ip", "netns", "exec",
                "%s-host%d" % (self._cluster, host), *command]

    def start(self, host, *command, **kwargs):
        process = subprocess.Popen(self.on(host, *command), **kwargs)

        def end():
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()

        self.addCleanup(end)
        return process

    def start_coordinator(self, host, world_size=2):
        if os.path.exists(self._port_file):
            os.remove(self._port_file)
        process = self.start(host, _COORDINATOR, "--job=test", "--world-size=%d" % world_size,
                             "--listen=%s:0" % _ADDRESSES[host],
                             "--port-file=" + self._port_file)
        deadline = time.monotonic() + _PATIENCE_S
        while not os.path.exists(self._port_file):
            self.assertIsNone(process.poll(), "the coordinator has ended")
            self.assertLess(time.monotonic(), deadline, "no port file")
            time.sleep(0.01)
        with open(self._port_file, encoding="ascii") as port:
            return "%s:%d" % (_ADDRESSES[host], int(port.read()))

    def start_trainer(self, host, *flags, rank=None, world_size=2, node=None):
        """The trainer, and the socket whose end lets it go on after a pause."""
        rank = host if rank is None else rank
        node = host if node is None else node
        ours, link = socket.socketpair()
        self.addCleanup(ours.close)
        with link:
            trainer = self.start(
                host,
                # The trainer expects its link as descriptor 3.
                "bash", "-c", 'exec 3<&%d "$@"' % link.fileno(), "trainer",
                _TRAINER, "--rank=%d" % rank, "--world_size=%d" % world_size,
                "--node=host%d" % node, *flags,
                pass_fds=[link.fileno()],
                stdout=subprocess.PIPE,
            )
        return trainer, ours

    def wait_for(self, trainer, event):
        """The next event of that kind."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            left = max(0, deadline - time.monotonic())
            self.assertTrue(select.select([trainer.stdout], [], [], left)[0], "no event " + event)
            text = self._read_line(trainer)
            self.assertTrue(text, "the trainer has ended before the event " + event)
            line = json.loads(text)
            self.assertNotEqual(line["event"], "error", line)
            if line["event"] == event:
                return line

    @staticmethod
    def _read_line(trainer):
        # Unbuffered, so that select sees what is left.
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(trainer.stdout.fileno(), 1)
            if not byte:
                break
            line += byte
        return line

    def start_ranks(self, host_of_rank, node_of_rank, *flags):
        """A job of as many ranks as these have elements."""
        world_size = len(host_of_rank)
        address = self.start_coordinator(0, world_size)
        return [
            self.start_trainer(host, "--coordinator=" + address, "--interface=" + _ADDRESSES[host],
                               *flags, rank=rank, world_size=world_size, node=node)
            for rank, (host, node) in enumerate(zip(host_of_rank, node_of_rank, strict=True))
        ]

    def end_well(self, trainers):
        for _, link in trainers:
            link.close()
        for trainer, _ in trainers:
            self.wait_for(trainer, "done")
        for trainer, _ in trainers:
            self.assertEqual(trainer.wait(_PATIENCE_S), 0)

    def trained(self, host_of_rank, node_of_rank, *flags):
        """Parameters and slots of every rule, as files: name -> bytes."""
        with tempfile.TemporaryDirectory() as folder:
            self.end_well(self.start_ranks(host_of_rank, node_of_rank, "--dump=" + folder,
                                           "--table=greedy,balanced", "--table_states=1", *flags))
            dumped = {}
            for name in os.listdir(folder):
                with open(os.path.join(folder, name), "rb") as file:
                    dumped[name] = file.read()
        return dumped

    def expect_same_bits(self, expected, actual):
        self.assertGreater(len(expected), len(_ADDRESSES))
        self.assertEqual(expected.keys(), actual.keys())
        self.assertEqual([name for name in expected if expected[name] != actual[name]], [])


class TwoHosts(Hosts):
    hosts = 2

    def received_bytes(self, host):
        counter = "/sys/class/net/%s/statistics/rx_bytes" % _LINK
        return int(subprocess.check_output(self.on(host, "cat", counter)))

    def test_ranks_on_another_interface_train_alike_and_reach_each_others_owners(self):
        address = self.start_coordinator(0)
        elements = 200000
        job = ["--coordinator=" + address, "--interface=" + _LINK, "--elements=%d" % elements,
               "--plane=gloo",
               "--parameters=1", "--steps=3", "--pause_after=2"]
        trainers = [
            # Listens everywhere: what it advertises must be reachable all the same.
            self.start_trainer(0, *job, "--owner_listen=0.0.0.0:0"),
            # Listens where the coordinator is reached from.
            self.start_trainer(1, *job),
        ]
        owners = [self.wait_for(trainer, "joined")["owner_address"] for trainer, _ in trainers]
        for trainer, _ in trainers:
            self.wait_for(trainer, "paused")
        for host, owner in enumerate(owners):
            self.assertTrue(owner.startswith(_ADDRESSES[host] + ":"), owners)
            listed = subprocess.run(
                self.on(1 - host, _GRPC_CLI, "ls", owner),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_PATIENCE_S,
                check=False,
            )
            self.assertIn("optshard.v1.ShardOwner", listed.stdout)
        # Each step moves the one parameter's gradient to its owner, or its values from there.
        for host in range(2):
            self.assertGreater(self.received_bytes(host), 2 * elements * 4)
        for _, link in trainers:
            link.close()
        checksums = [self.wait_for(trainer, "done")["checksum"] for trainer, _ in trainers]
        self.assertEqual(checksums[0], checksums[1])
        for trainer, _ in trainers:
            self.assertEqual(trainer.wait(_PATIENCE_S), 0)

    def test_four_ranks_on_two_hosts_have_the_bits_of_one_host(self):
        nodes = (0, 1, 0, 1)
        self.expect_same_bits(self.trained((0, 0, 0, 0), nodes), self.trained(nodes, nodes))

    def test_each_byte_of_a_step_crosses_to_the_other_host_once(self):
        elements = 400000
        steps = 3
        trainers = self.start_ranks((0, 1, 0, 1), (0, 1, 0, 1), "--policy=balanced",
                                    "--elements=%d" % elements, "--parameters=1",
                                    "--steps=%d" % (steps + 1), "--pause_after=%d" % steps)
        for trainer, _ in trainers:
            self.wait_for(trainer, "paused")
        # Half of the sums and half of the values; it has the first values itself.
        needed = steps * elements * 4
        received = self.received_bytes(0)
        self.assertGreater(received, needed)
        self.assertLess(received, 1.2 * needed)
        self.end_well(trainers)


class FourHosts(Hosts):
    hosts = 4

    def test_a_rank_on_each_has_the_bits_of_four_ranks_of_one_node(self):
        # Summed in the order of the ranks or of the nodes: it is the same tree.
        self.expect_same_bits(self.trained((0, 0, 0, 0), (0, 0, 0, 0)),
                              self.trained((0, 1, 2, 3), (0, 1, 2, 3)))

    def test_two_ranks_on_each_have_the_bits_of_one_host_without_shared_memory(self):
        nodes = (0, 1, 2, 3, 3, 2, 1, 0)
        self.expect_same_bits(self.trained((0,) * len(nodes), nodes, "--plane=gloo"),
                              self.trained(nodes, nodes))


if __name__ == "__main__":
    unittest.main()
