"""Hosts out of network namespaces, joined by a switch, whose links can be cut, slowed down and mended."""

import subprocess

_MAKER = "tools/cluster_hosts.sh"
_SLOW = ("tbf", "rate", "20mbit", "burst", "64kb", "latency", "100ms")

_LATER_ADDRESSES = 100


def _later_address(number):
    return "192.0.2.%d" % (150 + number)


class Hosts:
    """Thread-compatible. Removed by `close`, which may be called twice."""

    def __init__(self, name, count):
        self.count = count
        self._name = name
        self._readdressed = 0
        try:
            subprocess.run([_MAKER, "make", name, str(count)], check=True)
        except BaseException:
            # A signal to this process ends the maker before it can remove what it has made.
            self.close()
            raise

    def close(self):
        subprocess.run([_MAKER, "remove", self._name], check=True)

    @staticmethod
    def address(host):
        """The first one."""
        return "192.0.2.%d" % (host + 1)

    @classmethod
    def addresses(cls, count):
        """All that so many hosts may ever have."""
        return [cls.address(host) for host in range(count)] + [
            _later_address(number) for number in range(1, _LATER_ADDRESSES + 1)]

    def readdress(self, host):
        """Gives it one that no host has now, in place of those that it has."""
        self._readdressed = self._readdressed % _LATER_ADDRESSES + 1
        namespace = "%s-host%d" % (self._name, host)
        for change in (["flush"], ["add", _later_address(self._readdressed) + "/24"]):
            subprocess.run(["ip", "-n", namespace, "address", *change, "dev", "eth0"], check=True)

    def on(self, host, command):
        """The command line that runs `command` on the host, and ends it with this process."""
        return ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec",
                "%s-host%d" % (self._name, host), *command]

    def cut(self, host):
        """As if its cable was pulled: nobody is told, packets are lost."""
        self._set_port(host, "down")

    def slow_down(self, host):
        """To 20 Mbit/s each way: steps take a second or so."""
        self._queue(host, *_SLOW)

    def mend(self, host):
        self._set_port(host, "up")
        self._queue(host, "noqueue")

    def _queue(self, host, *discipline):
        for namespace, device in (("switch", "port%d" % host), ("host%d" % host, "eth0")):
            subprocess.run(["tc", "-n", "%s-%s" % (self._name, namespace), "qdisc", "replace", "dev", device,
                            "root", *discipline], check=True)

    def _set_port(self, host, state):
        subprocess.run(["ip", "-n", self._name + "-switch", "link", "set", "port%d" % host, state],
                       check=True)
