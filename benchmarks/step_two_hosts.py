"""step_two_hosts: a step of the recipe on two hosts of two ranks, at several rates of their links.

The hosts are network namespaces of this machine (tools/cluster_hosts.sh), so it wants root.
"""

import dataclasses
import os
import subprocess
import sys

import recipe
from harness.benchmark import Benchmark, Part

_HOSTS = 2
_RANKS = 4
_RATES = ("1gbit", "2gbit", "10gbit")
_MAKER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tools", "cluster_hosts.sh")
# What has to cross to the other host in a step, each way: the sums of the gradients whose owners are
# there, which is half of them, and the values of the parameters whose owners are here.
_BYTES = recipe.PARAMETERS * 4


class StepTwoHosts(Benchmark):
    name = "step_two_hosts"
    title = "reduce, update and publish of %s, Adam, 2 hosts of 2 ranks" % recipe.TITLE

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._made = []

    def close(self):
        for cluster in self._made:
            subprocess.run([_MAKER, "remove", cluster], check=True)
        super().close()

    def _on_hosts(self, contestant, cluster, ranks_of_host):
        """Each rank on its host, by the way that its link is."""
        commands = [
            ["ip", "netns", "exec", "%s-host%d" % (cluster, rank // ranks_of_host),
             "env", "GLOO_SOCKET_IFNAME=eth0", "no_grpc_proxy=192.0.2.1,192.0.2.2", *command]
            for rank, command in enumerate(contestant.commands)
        ]
        return dataclasses.replace(contestant, commands=commands)

    def _ours(self, name, title, role, cluster, port, *arguments):
        commands = [
            [
                os.path.join(self.binaries, "optshard-bench-step"),
                "--rank=%d" % rank,
                "--world_size=%d" % _RANKS,
                "--embedded_coordinator=192.0.2.1:%d" % port,
                "--gradients=reduce",
                "--interface=eth0",
                "--node=host%d" % (rank // (_RANKS // _HOSTS)),
                *arguments,
            ]
            for rank in range(_RANKS)
        ]
        made = self.program(name, title, role, "optshard-bench-step", [], same_result=True)
        return self._on_hosts(dataclasses.replace(made, commands=commands), cluster, _RANKS // _HOSTS)

    def _stream(self, cluster, rate):
        meeting_place = self.meeting_place("stream_" + rate)
        os.mkdir(meeting_place)
        arguments = ["--rendezvous=" + meeting_place, "--network=eth0", "--bytes=%d" % _BYTES]
        made = self.program("link", "the bytes that must cross, over TCP", "limit: link",
                            "optshard-bench-tcp-stream", arguments)
        return self._on_hosts(made, cluster, 1)

    def parts(self):
        parts = []
        if os.geteuid() != 0:
            print("%s: left out, only root can make network namespaces" % self.name, file=sys.stderr)
            return parts
        for rate in _RATES:
            cluster = "optshard-bench-%d-%s" % (os.getpid(), rate)
            subprocess.run([_MAKER, "make", cluster, str(_HOSTS), rate], check=True)
            self._made.append(cluster)
            contestants = [
                self._ours("ours", "optshard", "ours", cluster, 4961),
                self._ours("gloo", "optshard, all over Gloo", "reference", cluster, 4962, "--plane=gloo"),
                self._stream(cluster, rate),
            ]
            parts.append(Part("%s_%s" % (self.name, rate), "%s, links of %s" % (self.title, rate), contestants))
        return parts
