"""optshard-coordinator as a program: flags, signals, grpc_cli, members that are killed or stopped."""

import os
import select
import signal
import subprocess
import tempfile
import time
import unittest

_COORDINATOR = "server/coordinator/optshard-coordinator"
_MEMBER = "tests/server/coordinator/member"
_GRPC_CLI = "external/grpc_cli/grpc_cli"

# Slow machines under sanitizers; no test waits as long as that when things work.
_PATIENCE_S = 60


class Process(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self._processes = []

    def tearDown(self):
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe:
                    pipe.close()
        self._folder.cleanup()

    def start(self, *command, **kwargs):
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **kwargs,
        )
        self._processes.append(process)
        return process

    def start_coordinator(self, *flags):
        """The process and its address, once it listens."""
        port_file = os.path.join(self._folder.name, "port")
        process = self.start(_COORDINATOR, "--port_file=" + port_file, *flags)
        deadline = time.monotonic() + _PATIENCE_S
        while not os.path.exists(port_file):
            self.assertIsNone(process.poll(), "the coordinator has ended")
            self.assertLess(time.monotonic(), deadline, "no port file")
            time.sleep(0.01)
        with open(port_file, encoding="ascii") as port:
            return process, "127.0.0.1:%d" % int(port.read())

    def start_members(self, address, count):
        members = [
            self.start(
                _MEMBER,
                "--coordinator=" + address,
                "--rank=%d" % rank,
                "--world_size=%d" % count,
            )
            for rank in range(count)
        ]
        for member in members:
            self.assertEqual(member.stdout.readline(), "active\n")
        return members

    def grpc_cli(self, *arguments):
        result = subprocess.run(
            [_GRPC_CLI, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PATIENCE_S,
            # A proxy of the environment is not for the loopback.
            env={**os.environ, "no_grpc_proxy": "127.0.0.1"},
        )
        self.assertEqual(result.returncode, 0, result.stdout)
        return result.stdout


class Flags(Process):
    def ended(self, *flags, code=1):
        result = subprocess.run(
            [_COORDINATOR, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=_PATIENCE_S,
        )
        self.assertEqual(result.returncode, code, result.stderr)
        return result.stdout + result.stderr

    def test_help_is_a_page_with_defaults_and_an_example(self):
        page = self.ended("--help", code=0)
        for part in (
            "The coordinator of one training job.",
            "--world-size=N  (required)",
            "--lease=DURATION  (default: 5s)",
            "--resume-grace=DURATION  (default: 10s)",
            "\nExamples:\n  optshard-coordinator --world-size=2",
        ):
            self.assertIn(part, page)

    def test_wrong_command_lines_end_with_2_and_name_what_is_wrong(self):
        self.assertIn("--world-size is missing", self.ended(code=2))
        self.assertIn("stray", self.ended("--world-size=1", "stray", code=2))
        self.assertIn("--wrold-size=1", self.ended("--wrold-size=1", code=2))
        self.assertIn(
            "--lease=5: expected a duration", self.ended("--world_size=1", "--lease=5", code=2)
        )
        self.assertIn("warning", self.ended("--world_size=1", "--log_level=loud", code=2))

    def test_unwritable_port_file_is_named(self):
        self.assertIn("/nowhere/port", self.ended("--world_size=1", "--port_file=/nowhere/port"))

    def test_taken_port_is_named(self):
        _, address = self.start_coordinator("--world_size=1")
        self.assertIn(address, self.ended("--world_size=1", "--listen=" + address))


class Ends(Process):
    def test_signals_end_it_in_order_also_with_members_in(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=number):
                coordinator, address = self.start_coordinator("--world_size=1")
                self.start_members(address, 1)
                coordinator.send_signal(number)
                self.assertEqual(coordinator.wait(_PATIENCE_S), 0)
                os.remove(os.path.join(self._folder.name, "port"))

    def test_exit_when_done_ends_it_once_all_have_left(self):
        coordinator, address = self.start_coordinator("--world_size=2", "--exit_when_done")
        members = self.start_members(address, 2)
        members[0].stdin.close()
        self.assertEqual(members[0].wait(_PATIENCE_S), 0)
        self.assertIsNone(coordinator.poll())
        members[1].stdin.close()
        self.assertEqual(members[1].wait(_PATIENCE_S), 0)
        self.assertEqual(coordinator.wait(_PATIENCE_S), 0)

    def test_exit_when_done_ends_it_after_a_failure_once_nobody_has_come_back(self):
        coordinator, address = self.start_coordinator(
            "--world_size=1", "--exit_when_done", "--resume_grace=500ms"
        )
        members = self.start_members(address, 1)
        members[0].kill()
        since = time.monotonic()
        self.assertEqual(coordinator.wait(_PATIENCE_S), 0)
        self.assertGreater(time.monotonic() - since, 0.5)


class Losses(Process):
    def told_within(self, member, rank, seconds, since):
        line = member.stdout.readline()
        took = time.monotonic() - since
        self.assertRegex(line, "^lost %d " % rank)
        self.assertLess(took, seconds)

    def test_killed_member_is_named_to_both_others_within_two_seconds(self):
        _, address = self.start_coordinator("--world_size=3")
        members = self.start_members(address, 3)
        members[1].kill()
        since = time.monotonic()
        self.told_within(members[0], 1, 2, since)
        self.told_within(members[2], 1, 2, since)

    def test_stopped_member_is_named_within_its_lease_and_two_seconds(self):
        _, address = self.start_coordinator("--world_size=3", "--lease=1s")
        members = self.start_members(address, 3)
        members[2].send_signal(signal.SIGSTOP)
        since = time.monotonic()
        self.told_within(members[0], 2, 1 + 2, since)
        self.told_within(members[1], 2, 1 + 2, since)

    def test_coordinator_that_is_paused_for_longer_than_the_lease_loses_nobody(self):
        coordinator, address = self.start_coordinator("--world_size=2", "--lease=1s")
        members = self.start_members(address, 2)
        coordinator.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        coordinator.send_signal(signal.SIGCONT)
        # As long as the lease: whoever is not heard from by then is lost.
        said, _, _ = select.select([member.stdout for member in members], [], [], 1.2)
        self.assertEqual([pipe.readline() for pipe in said], [])
        for member in members:
            member.stdin.close()
            self.assertEqual(member.stdout.readline(), "left\n")
            self.assertEqual(member.wait(_PATIENCE_S), 0)

    def test_rank_that_never_comes_is_named(self):
        _, address = self.start_coordinator("--world_size=2", "--join_timeout=500ms")
        member = self.start(_MEMBER, "--coordinator=" + address, "--rank=0", "--world_size=2")
        # Two threads say so, in any order.
        self.assertRegex(member.stdout.readline(), "DEADLINE_EXCEEDED: .*waiting for rank 1")
        self.assertEqual(member.wait(_PATIENCE_S), 1)


class GrpcCli(Process):
    def test_lists_the_services(self):
        _, address = self.start_coordinator("--world_size=1")
        services = self.grpc_cli("ls", address).split()
        self.assertIn("optshard.v1.Coordinator", services)
        self.assertIn("grpc.reflection.v1alpha.ServerReflection", services)
        self.assertIn("grpc.health.v1.Health", services)

    def test_lists_the_methods(self):
        _, address = self.start_coordinator("--world_size=1")
        methods = self.grpc_cli("ls", address, "optshard.v1.Coordinator", "-l")
        self.assertIn("rpc Join(optshard.v1.JoinRequest)", methods)
        self.assertIn("returns (stream optshard.v1.WatchEvent)", methods)

    def test_shows_the_status_of_a_running_job(self):
        _, address = self.start_coordinator("--world_size=2", "--job=digits")
        status = self.grpc_cli("call", address, "optshard.v1.Coordinator.GetStatus", "")
        self.assertIn('summary: "job digits: nobody has joined yet"', status)

    def test_shows_members_with_states_by_name(self):
        _, address = self.start_coordinator("--world_size=2")
        members = self.start_members(address, 2)
        status = self.grpc_cli("call", address, "optshard.v1.Coordinator.GetStatus", "")
        self.assertIn("state: GROUP_STATE_ACTIVE", status)
        self.assertEqual(status.count("state: MEMBER_STATE_ACTIVE"), 2)
        self.assertIn("pid: %d" % members[1].pid, status)
        self.assertIn(
            'summary: "default active: 2 ranks, step 0, generation 1; adam, greedy, 2 parameters, '
            '36 elements"',
            status,
        )


if __name__ == "__main__":
    unittest.main()
