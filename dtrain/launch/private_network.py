"""A network of a local cluster's own, where only its tasks can be reached.

TensorFlow's servers listen on every interface and obey whoever connects. A network
namespace (network_namespaces(7)) has nothing but its loopback, and a user namespace
lets somebody make one who is not root. A process that lives for a moment makes both;
the tasks enter them as the first thing they do. File systems, GPUs, pids and the
terminal are as outside.
"""

import ctypes
import fcntl
import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence

_VARIABLE = "DTRAIN_PRIVATE_NETWORK"
_INSIDE = "inside"
_KINDS = ("user", "net")

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1  # netdevice(7)

# What people's code says when it cannot reach the world.
_UNREACHABLE = re.compile(
    r"name resolution|Name or service not known|Network is unreachable|"
    r"Could ?n[o']t resolve|Failed to resolve|nodename nor servname|getaddrinfo failed|"
    r"No address associated with hostname",
    re.IGNORECASE,
)


class PrivateNetwork:
    """A network for tasks to be started in; it lasts as long as one of them does.

    Attributes:
        descriptors: that a task's process has to be given.

    Raises:
        OSError: this system does not allow it.
    """

    def __init__(self):
        with subprocess.Popen(
            _run("make"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as maker:
            answer = maker.stdout.readline().strip()
            if answer != _INSIDE:
                raise OSError(answer or f"its maker ended with {maker.wait()}")
            self.descriptors = tuple(
                os.open(f"/proc/{maker.pid}/ns/{kind}", os.O_RDONLY) for kind in _KINDS
            )
            maker.stdin.close()

    def inside(self, argv: Sequence[str]) -> list[str]:
        """Returns a command that is another command, run in this network."""
        return [*_run("enter"), *map(str, self.descriptors), *argv]

    def close(self) -> None:
        """Lets go of it; the tasks in it stay there."""
        for descriptor in self.descriptors:
            os.close(descriptor)


def hint(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Returns what to add to an error's text, if this network may be its cause."""
    if environ.get(_VARIABLE) != _INSIDE or not _UNREACHABLE.search(text):
        return ""
    return (
        " The tasks of a local cluster have a network of their own, from which nothing "
        "else can be reached. Give --private_network=off if they need more."
    )


def _run(*args: str) -> list[str]:
    # By its path and isolated: the kernel lets only a process without threads change
    # its namespaces, and what dtrain imports has some.
    return [sys.executable, "-I", os.path.abspath(__file__), *args]


def _call(name: str, *args: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _make() -> None:
    """Moves this process into a network of its own, and its loopback up."""
    user, group = os.getuid(), os.getgid()
    try:
        _call("unshare", _CLONE_NEWNET)
    except PermissionError:
        _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNET)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh14x", b"lo", 0)
        answer = fcntl.ioctl(sock, _SIOCGIFFLAGS, request)
        flags = struct.unpack("16sh14x", answer)[1] | _IFF_UP
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags))


def _enter(descriptors: Sequence[int]) -> None:
    """Moves this process into a network that was made for it."""
    for descriptor, kind in zip(descriptors, _KINDS, strict=True):
        own, wanted = os.stat(f"/proc/self/ns/{kind}"), os.fstat(descriptor)
        if (own.st_dev, own.st_ino) != (wanted.st_dev, wanted.st_ino):
            _call("setns", descriptor, 0)
        os.close(descriptor)
    os.environ[_VARIABLE] = _INSIDE


def _main(task: str, *args: str) -> None:
    if task == "make":
        try:
            _make()
            print(_INSIDE, flush=True)
        except OSError as error:
            print(error.strerror or error, flush=True)
        sys.stdin.read()
    else:
        _enter([int(arg) for arg in args[: len(_KINDS)]])
        os.execv(args[len(_KINDS)], args[len(_KINDS) :])


if __name__ == "__main__":
    _main(*sys.argv[1:])
