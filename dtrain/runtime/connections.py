"""How long TensorFlow's connections outlive a silence: longer than the heartbeat does.

gRPC closes a connection whose other end is silent for 20 s, but in servers only, and
only where something is on its way. If the link comes back after that, the client has
heard nothing of it, and waits for ever for an answer. So the kernel is told of each
connection of this process to hold it for longer than the heartbeat's time-out, at both
ends, and to ask now and then whether the other end still knows it.
"""

import os
import socket
import threading
import time

_POLL_SECONDS = 1.0
_TIMES = 2  # the time-out: who is lost is noticed by the heartbeat first
_PROBES_PER_TIMEOUT = 3


def keep(timeout: float) -> None:
    """From now on, looks after all TCP connections that this process has.

    Args:
        timeout: of the heartbeat, in seconds.
    """
    keeper = Keeper(timeout)

    def look() -> None:
        while True:
            keeper.look()
            time.sleep(_POLL_SECONDS)

    threading.Thread(target=look, daemon=True).start()


class Keeper:
    """The connections that have been told to the kernel.

    Args:
        timeout: of the heartbeat, in seconds.
    """

    def __init__(self, timeout: float):
        probe = max(1, round(timeout / _PROBES_PER_TIMEOUT))
        num_probes = _TIMES * _PROBES_PER_TIMEOUT
        milliseconds = round(_TIMES * timeout * 1000)
        self._options = {
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): probe,
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): probe,
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): num_probes,
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT): milliseconds,
        }
        self._known: dict[str, str] = {}  # socket by descriptor

    def look(self) -> None:
        """Tells the kernel of connections that are new since the last look."""
        found = {}
        for name in os.listdir("/proc/self/fd"):
            try:
                link = os.readlink(f"/proc/self/fd/{name}")
                if not link.startswith("socket:"):
                    continue
                if self._known.get(name) != link:
                    self._hold(int(name))
                found[name] = link
            except OSError:  # closed meanwhile, or not connected yet
                continue
        self._known = found

    def _hold(self, descriptor: int) -> None:
        """Raises `OSError` if it is not connected."""
        with socket.socket(fileno=os.dup(descriptor)) as own:
            is_inet = own.family in (socket.AF_INET, socket.AF_INET6)
            if not is_inet or own.type != socket.SOCK_STREAM:
                return
            own.getpeername()
            for (level, option), value in self._options.items():
                own.setsockopt(level, option, value)
