"""Hosts for tests: network namespaces of this machine, joined by a bridge.

Each has its own address, so that one can be cut off, slowed, or lost, as a machine can.
Nothing leaves this machine: the bridge is in a namespace, too.
"""

import contextlib
import os
import subprocess

import pytest

_NETWORK = "10.77.0"


class Hosts:
    """So many hosts, numbered from 1.

    Args:
        count: how many.

    Raises:
        CalledProcessError: this system does not allow it.
    """

    def __init__(self, count: int):
        self._prefix = f"dtrain{os.getpid()}"
        self._switch = f"{self._prefix}s"
        self.names = [f"{self._prefix}h{i}" for i in range(1, count + 1)]

    def open(self) -> None:
        _run("ip", "netns", "add", self._switch)
        _run("ip", "-n", self._switch, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", self._switch, "link", "set", "br0", "up")
        for i, name in enumerate(self.names, 1):
            port = f"v{i}"
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run(
                *("ip", "-n", self._switch, "link", "add", port, "type", "veth"),
                *("peer", "name", "eth0", "netns", name),
            )
            _run("ip", "-n", self._switch, "link", "set", port, "master", "br0")
            _run("ip", "-n", self._switch, "link", "set", port, "up")
            address = f"{self.address(i)}/24"
            _run("ip", "-n", name, "addr", "add", address, "dev", "eth0")
            _run("ip", "-n", name, "link", "set", "eth0", "up")

    def close(self) -> None:
        for name in (*self.names, self._switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    @staticmethod
    def address(host: int) -> str:
        return f"{_NETWORK}.{host}"

    def inside(self, host: int) -> list[str]:
        """Returns what to put before a command that is to run on a host."""
        return ["ip", "netns", "exec", self.names[host - 1]]

    def cut(self, host: int) -> None:
        """Cuts a host off from all others."""
        _run("ip", "-n", self._switch, "link", "set", f"v{host}", "down")

    def mend(self, host: int) -> None:
        """Brings a host that was cut off back."""
        _run("ip", "-n", self._switch, "link", "set", f"v{host}", "up")

    def slow(self, host: int, rate: str) -> None:
        """Limits what a host sends and is sent, for instance to "10mbit"."""
        shape = ("root", "tbf", "rate", rate, "burst", "64kb", "latency", "400ms")
        for where, device in (
            (self.names[host - 1], "eth0"),
            (self._switch, f"v{host}"),
        ):
            _run(
                "ip",
                "netns",
                "exec",
                where,
                "tc",
                "qdisc",
                "add",
                "dev",
                device,
                *shape,
            )


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


@pytest.fixture
def make_hosts():
    """A function that makes so many hosts; they are gone after the test."""
    with contextlib.ExitStack() as stack:

        def make(count: int) -> Hosts:
            hosts = Hosts(count)
            stack.callback(hosts.close)
            try:
                hosts.open()
            except (OSError, subprocess.CalledProcessError) as error:
                reason = getattr(error, "stderr", None) or error
                if os.environ.get("CI"):
                    pytest.fail(f"network namespaces cannot be made here: {reason}")
                pytest.skip(f"needs network namespaces (ip netns, root): {reason}")
            return hosts

        yield make
