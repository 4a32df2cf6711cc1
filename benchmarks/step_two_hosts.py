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
_RANKS_OF_HOST = 2
_RANKS = _HOSTS * _RANKS_OF_HOST
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
                "--node=host%d" % (rank // _RANKS_OF_HOST),
                *arguments,
            ]
            for rank in range(_RANKS)
        ]
        made = self.program(name, title, role, "optshard-bench-step", [], same_result=True)
        return self._on_hosts(dataclasses.replace(made, commands=commands), cluster, _RANKS_OF_HOST)

    def _peer(self, name, title, cluster, wrapper, optimizer):
        arguments = ["--wrapper=" + wrapper, "--optimizer=" + optimizer]
        made = self.peer(name, title, "peer", "wrapped_step.py", arguments, _RANKS, same_result=True)
        return self._on_hosts(made, cluster, _RANKS_OF_HOST)

    def _stream(self, cluster):
        meeting_place = self.meeting_place("stream")
        os.mkdir(meeting_place)
        arguments = ["--rendezvous=" + meeting_place, "--network=eth0", "--bytes=%d" % _BYTES]
        made = self.program("link", "the bytes that must cross, over TCP", "limit: link",
                            "optshard-bench-tcp-stream", arguments)
        return self._on_hosts(made, cluster, 1)

    def _beside(self, cluster, *others):
        return [
            self._ours("ours", "optshard", "ours", cluster, 4961),
            *others,
            self._stream(cluster),
        ]

    def _parts_of_rate(self, rate, cluster):
        """Two, since all contestants at once want more memory than a machine of 24 GiB has."""
        name = "%s_%s" % (self.name, rate)
        title = "%s, links of %s" % (self.title, rate)
        yield Part(name, title, self._beside(
            cluster,
            self._peer("ddp_zero", "DDP + torch ZeRO", cluster, "ddp", "zero_bucket_view"),
            self._peer("sharded_ddp_oss", "fairscale ShardedDDP + OSS", cluster, "sharded_ddp", "oss"),
        ))
        yield Part(name + "_unsharded", title + ", beside a job that shards nothing", self._beside(
            cluster,
            self._peer("ddp_adam", "DDP + torch Adam, replicated", cluster, "ddp", "replicated"),
            self._ours("gloo", "optshard, all over Gloo", "reference", cluster, 4962, "--plane=gloo"),
        ))

    def parts(self):
        if os.geteuid() != 0:
            print("%s: left out, only root can make network namespaces" % self.name, file=sys.stderr)
            return
        for rate in _RATES:
            cluster = "optshard-bench-%d-%s" % (os.getpid(), rate)
            subprocess.run([_MAKER, "make", cluster, str(_HOSTS), rate], check=True)
            self._made.append(cluster)
            yield from self._parts_of_rate(rate, cluster)
