"""What the entries of ./run bench share: where their contestants meet and how they are started."""

import dataclasses
import itertools
import os
import shutil
import socket
import tempfile

from harness import rounds, summary
from harness.contestant import Contestant, Service

_PEERS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "peers")
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    # All over the loopback interface, whatever the host's name resolves to.
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def each_on_a_core(contestant, cores=None):
    """Its ranks each on a core of its own, as long as there are as many."""
    cores = cores or sorted(os.sched_getaffinity(0))
    commands = [
        ["taskset", "--cpu-list", str(cores[rank % len(cores)]), *command]
        for rank, command in enumerate(contestant.commands)
    ]
    return dataclasses.replace(contestant, commands=commands)


class Part:
    """What makes one element of out/bench.json: contestants that take turns with each other."""

    def __init__(self, name, title, contestants):
        self.name = name
        self.title = title
        self.contestants = contestants


class Benchmark:
    """Makes the contestants of an entry; close() removes what they met in.

    A subclass has `name` and `title`, and gives its contestants in contestants(), or in parts() where
    it makes several elements of out/bench.json.
    """

    name = ""
    title = ""
    unit = "ms"
    # The limit is the sum of the entry's limits instead of the slowest of them.
    limits_add_up = False
    # By how much, relatively, contestants with same_result may differ.
    result_tolerance = summary.RESULT_TOLERANCE

    def __init__(self, binaries, python, step_timeout_s):
        self.binaries = binaries
        self.python_program = python
        self.step_timeout_s = step_timeout_s
        self._directory = tempfile.mkdtemp(prefix="optshard-bench-")
        self._meeting_places = itertools.count()

    def close(self):
        shutil.rmtree(self._directory, ignore_errors=True)

    def contestants(self):
        raise NotImplementedError

    def parts(self):
        return [Part(self.name, self.title, self.contestants())]

    def run(self, contestants, options):
        """Measures them; a rounds.RunResult."""
        return rounds.run(contestants, options)

    def finish(self, entries, out):
        """Called with all of the entry's elements. Writes what goes to the directory `out` besides;
        returns a section for the report, or nothing."""
        return ""

    # For subclasses.

    def meeting_place(self, name):
        """A path for the processes of one contestant; nothing is there yet, also where a contestant of
        another part has the same name."""
        return os.path.join(self._directory, "%d-%s" % (next(self._meeting_places), name))

    @staticmethod
    def free_address():
        """Free now; whoever takes it before rank 0 listens there makes the contestant fail, audibly."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return "127.0.0.1:%d" % probe.getsockname()[1]

    def peer(self, name, title, role, script, arguments, world_size=2, **kwargs):
        """A contestant in Python that joins its ranks by torch's gloo."""
        meeting_place = self.meeting_place(name)
        commands = [
            [
                self.python_program,
                os.path.join(_PEERS, script),
                "--rank=%d" % rank,
                "--world_size=%d" % world_size,
                "--rendezvous=" + meeting_place,
                "--timeout_s=%g" % self.step_timeout_s,
                *arguments,
            ]
            for rank in range(world_size)
        ]
        return Contestant(name, title, role, commands, _ENVIRONMENT, **kwargs)

    def one_process(self, name, title, role, script, arguments, **kwargs):
        """A contestant in Python that has all replicas in one process."""
        command = [self.python_program, os.path.join(_PEERS, script), *arguments]
        return Contestant(name, title, role, [command], _ENVIRONMENT, **kwargs)

    def program(self, name, title, role, program, arguments, world_size=2, **kwargs):
        """A contestant that is one of the project's programs; all ranks get the same arguments."""
        path = os.path.join(self.binaries, program)
        commands = [
            [path, "--rank=%d" % rank, "--world_size=%d" % world_size, *arguments]
            for rank in range(world_size)
        ]
        return Contestant(name, title, role, commands, _ENVIRONMENT, **kwargs)

    def sharded(self, name, title, role, program, arguments, world_size=2, **kwargs):
        """Ours, with the shard owners in the trainers."""
        arguments = ["--embedded_coordinator=" + self.free_address(), *arguments]
        return self.program(name, title, role, program, arguments, world_size, **kwargs)

    def attached(self, name, title, role, program, arguments, world_size=2, **kwargs):
        """Ours, with the shard owners in a server beside the trainers."""
        directory = self.meeting_place(name)
        os.mkdir(directory)
        coordinator = self.free_address()
        socket_path = os.path.join(directory, "socket")

        def service(program, *arguments):
            ready_file = os.path.join(directory, program)
            command = [os.path.join(self.binaries, program), "--port_file=" + ready_file, *arguments]
            return Service([*command, "--job=benchmark"], ready_file)

        services = [
            service(
                "optshard-coordinator", "--listen=" + coordinator, "--world_size=%d" % world_size
            ),
            service(
                "optshard-server",
                "--coordinator=" + coordinator,
                "--node_ranks=0-%d" % (world_size - 1),
                "--socket=" + socket_path,
            ),
        ]
        arguments = ["--coordinator=" + coordinator, "--attach=unix:" + socket_path, *arguments]
        return self.program(
            name, title, role, program, arguments, world_size, services=services, **kwargs
        )
