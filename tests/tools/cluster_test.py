"""./run cluster: hosts out of network namespaces, which are gone afterwards, however it ends."""

import re
import signal
import socket
import subprocess
import unittest

from tests.tools import network_namespaces

_CLUSTER = "tools/cluster.sh"
_PATIENCE_S = 60


class Cluster(network_namespaces.NetworkNamespaceTest):
    def run_cluster(self, *arguments):
        return subprocess.run([_CLUSTER, *arguments], capture_output=True, text=True, check=False,
                              timeout=_PATIENCE_S)

    def namespaces_of(self, cluster):
        return {name for name in network_namespaces.names() if name.startswith("optshard-%d-" % cluster.pid)}

    def test_each_rank_runs_on_its_host_with_torchruns_variables(self):
        ran = self.run_cluster(
            "--hosts=2", "--ranks-per-host=2", "--rate=1gbit", "--", "bash", "-c",
            'echo "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $MASTER_ADDR, '
            '$OPTSHARD_NODE, $(ip -4 -o address show eth0 | grep -o 192[0-9./]*), '
            '$(tc qdisc show dev eth0 | grep -o \'rate [^ ]*\')"')
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(
            sorted(ran.stdout.splitlines()),
            ["[host %d rank %d] %d of 4, %d of 2, 192.0.2.1, host%d, 192.0.2.%d/24, rate 1Gbit"
             % (rank // 2, rank, rank, rank % 2, rank // 2, rank // 2 + 1) for rank in range(4)])

    def test_hosts_reach_each_other(self):
        ran = self.run_cluster(
            "--hosts=3", "--ranks-per-host=1", "--", "python3", "-c",
            "import os, socket\n"
            "if os.environ['RANK'] == '0':\n"
            "    server = socket.create_server(('192.0.2.1', 4000))\n"
            "    for _ in range(2): server.accept()[0].sendall(b'hello')\n"
            "else:\n"
            "    while True:\n"
            "        try:\n"
            "            connection = socket.create_connection(('192.0.2.1', 4000), 10)\n"
            "            break\n"
            "        except ConnectionRefusedError: pass\n"
            "    print(connection.recv(5).decode())\n")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(sorted(ran.stdout.splitlines()),
                         ["[host 1 rank 1] hello", "[host 2 rank 2] hello"])

    def test_a_delay_is_how_long_a_link_takes_one_way(self):
        ran = self.run_cluster(
            "--hosts=2", "--ranks-per-host=1", "--delay=40ms", "--", "python3", "-c",
            "import os, socket, time\n"
            "if os.environ['RANK'] == '0':\n"
            "    socket.create_server(('192.0.2.1', 4000)).accept()\n"
            "while os.environ['RANK'] == '1':\n"
            "    begin = time.monotonic()\n"
            "    try:\n"
            "        socket.create_connection(('192.0.2.1', 4000), 10)\n"
            "        print(time.monotonic() - begin)\n"
            "        break\n"
            "    except ConnectionRefusedError: pass\n")
        if "this kernel has no netem" in ran.stderr:
            self.skipTest("this kernel has no netem")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        said = re.fullmatch(r"\[host 1 rank 1\] (.*)\n", ran.stdout)
        self.assertIsNotNone(said, ran.stdout)
        # There and back, over the links of both hosts.
        self.assertGreaterEqual(float(said[1]), 2 * 0.040)

    def test_a_rank_that_fails_ends_the_others_and_is_named(self):
        ran = self.run_cluster("--", "bash", "-c", "[[ $RANK == 2 ]] && exit 3; exec sleep 1000")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("rank 2 on host 1 ended with status 3", ran.stderr)

    def test_a_signal_leaves_no_host_and_no_process(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            ours, theirs = socket.socketpair()
            with ours, theirs:
                # Each rank holds an end of the pair; a byte says that it has started.
                cluster = subprocess.Popen(
                    [_CLUSTER, "--", "bash", "-c", "echo -n . >&%d; exec sleep 1000" % theirs.fileno()],
                    pass_fds=[theirs.fileno()], stdout=subprocess.DEVNULL, start_new_session=True)
                theirs.close()
                ours.settimeout(_PATIENCE_S)
                started = b""
                while len(started) < 4:
                    started += ours.recv(4)
                self.assertEqual(len(self.namespaces_of(cluster)), 3)
                cluster.send_signal(number)
                self.assertEqual(cluster.wait(_PATIENCE_S), 128 + number)
                self.assertEqual(self.namespaces_of(cluster), set())
                # The end that nobody holds any more.
                self.assertEqual(ours.recv(1), b"")

    def test_bad_arguments_are_named_and_leave_no_host(self):
        before = network_namespaces.names()
        for arguments, said in (
                (["--hosts=0"], "--hosts=0: expected a number"),
                (["--ranks-per-host=two"], "--ranks-per-host=two: expected a number"),
                (["--speed=1"], "unknown argument \"--speed=1\""),
                (["--rate=fast", "--", "true"], "tc does not take the rate \"fast\""),
                (["--delay=slow", "--", "true"], "tc does not take the delay \"slow\""),
                (["--", "no-such-program"], "there is no command \"no-such-program\""),
        ):
            ran = self.run_cluster(*arguments)
            self.assertNotEqual(ran.returncode, 0, arguments)
            self.assertIn(said, ran.stderr)
        self.assertEqual(network_namespaces.names(), before)


if __name__ == "__main__":
    unittest.main()
