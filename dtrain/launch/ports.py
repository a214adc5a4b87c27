"""Ports of this machine: which are free, and who holds one."""

import ipaddress
import os
import pathlib
import socket
from collections.abc import Iterator

import psutil

_LISTEN = "0A"  # a state in /proc/net/tcp: proc_net_tcp(5)


def free(count: int) -> list[int]:
    """Returns ports that nobody listened on a moment ago, all different.

    Another program can still take one before a task binds it: the launcher
    notices (`holder`) and tries again with others.
    """
    sockets = [socket.socket() for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def holder(port: int) -> str | None:
    """Returns who listens on a port, as a phrase; `None` if nobody does."""
    with socket.socket() as sock:
        # A port whose last connections are still closing can be bound all the same.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("", port))
            return None
        except PermissionError:
            return "the system (ports below 1024 need privileges)"
        except OSError:
            pass
    pid = _listener(port)
    if pid is None:
        return "another program"
    try:
        return f"process {pid} ({psutil.Process(pid).name()})"
    except psutil.Error:
        return f"process {pid}"


def listens(pid: int, port: int) -> bool:
    """Returns whether this process itself listens on the port."""
    try:
        links = list(_open_files(pid))
        rows = [
            line.split()
            for name in ("tcp", "tcp6")  # of its network, which may be another one
            for line in pathlib.Path(f"/proc/{pid}/net/{name}").read_text().splitlines()
        ]
    except OSError:  # it is ending
        return False
    return any(
        row[3] == _LISTEN
        and int(row[1].rpartition(":")[2], 16) == port
        and f"socket:[{row[9]}]" in links
        for row in rows
    )


def _open_files(pid: int) -> Iterator[str]:
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            yield os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:  # closed meanwhile
            continue


def is_public(host: str) -> bool:
    """Returns whether a host's address is one of the internet's."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:  # who cannot be looked up, by whatever name, is not
        return False
    return any(ipaddress.ip_address(entry[4][0]).is_global for entry in found)


def _listener(port: int) -> int | None:
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        return None
    return next((c.pid for c in connections if _is_listening(c, port) and c.pid), None)


def _is_listening(connection, port: int) -> bool:
    return connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
