"""Who is missing, before anything waits for them in silence."""

import itertools
import socket
import time
from collections.abc import Callable, Collection

from dtrain import errors
from dtrain.cluster.spec import Cluster, Task, split_address
from dtrain.console import Console

_SECONDS_BETWEEN_LINES = 10.0
_POLL_SECONDS = 0.1
_LOOK_SECONDS = 0.2


def wait_for(
    missing: Callable[[], list[Task]],
    cluster: Cluster,
    timeout: float,
    console: Console,
    check: Callable[[], None] | None = None,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Returns when nobody is missing any more.

    Args:
        missing: returns who is.
        cluster: has their addresses.
        timeout: seconds to wait for all of them.
        console: every 10 s one line names who is missing.
        check: called while waiting; raises what should end the wait.
        now: the clock, in seconds.

    Raises:
        GivenUp: some are still missing after `timeout`.
    """
    wait = Wait(cluster, timeout, console, now)
    while tasks := missing():
        if check is not None:
            check()
        wait.check(tasks)
        time.sleep(_POLL_SECONDS)


class Wait:
    """How long others are waited for, and what is said meanwhile.

    Args:
        cluster: has their addresses.
        timeout: seconds to wait for all of them.
        console: every 10 s one line names who is missing.
        now: the clock, in seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        timeout: float,
        console: Console,
        now: Callable[[], float] = time.monotonic,
    ):
        self.console = console
        self._cluster = cluster
        self._timeout = timeout
        self._now = now
        self.restart()

    def restart(self) -> None:
        """Begins anew, for something else that is waited for."""
        self._started = self._said = self._now()

    def check(self, missing: list[Task], hint: str = "", grace: float = 0.0) -> None:
        """Says now and then who is missing.

        Args:
            missing: who is, at least one.
            hint: a sentence for the error.
            grace: seconds beyond the time-out, for somebody else to decide.

        Raises:
            GivenUp: they are missing for too long.
        """
        names = ", ".join(f"{t} ({self._cluster.address(t)})" for t in missing)
        if self._now() - self._started >= self._timeout + grace:
            raise errors.GivenUp(
                f"No answer from {names} within --startup_timeout={self._timeout:g} s. "
                f"{hint}Start these tasks with the same host lists; see that the "
                "addresses are right and that no firewall is in between."
            )
        if self._now() - self._said >= _SECONDS_BETWEEN_LINES:
            self._said = self._now()
            self.console.line(f"Waiting for {names}.")


class Lookout:
    """Notices, while the chief waits for steps, that no worker is left to do them.

    TensorFlow waits for a lost worker to come back, which it may: somebody may be
    starting it again.

    Args:
        cluster: whose workers to look for.
        timeout: seconds without any worker after which there is no hope.
        is_over: whether nobody will start one again, because the run has to stop.
        now: the clock, in seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        timeout: float,
        is_over: Callable[[], bool],
        now: Callable[[], float] = time.monotonic,
    ):
        self._addresses = cluster.addresses("worker")
        self._timeout = timeout
        self._is_over = is_over
        self._now = now
        self._since: float | None = None

    def check(self, workers: Collection[int] | None = None) -> None:
        """Looks once.

        Args:
            workers: who is waited for; `None` for any worker.

        Raises:
            TaskUnavailable: none of them accepts connections any more.
        """
        addresses = [
            address
            for index, address in enumerate(self._addresses)
            if workers is None or index in workers
        ]
        if any(accepts(address) for address in addresses):
            self._since = None
            return
        self._since = self._now() if self._since is None else self._since
        if self._is_over() or self._now() - self._since >= self._timeout:
            raise errors.TaskUnavailable(
                f"{'No worker answers' if workers is None else 'There is no answer'} "
                f"any more ({', '.join(addresses)}). Start the run again: it goes on "
                "from the last checkpoint, if there is one."
            )


class Refusals:
    """Notices that another task's process is gone, while something waits for it.

    TensorFlow's collectives do not always: they fail at once where they wait for what
    a lost task was to send, but where it only had something to fetch, nobody hears of
    it until enough heartbeats are missing.

    Args:
        addresses: of tasks that all listen.
    """

    def __init__(self, addresses: Collection[str]):
        self._addresses = itertools.cycle(addresses)
        self._refused: set[str] = set()

    def look(self) -> bool:
        """Tries the next address, for a moment.

        Returns:
            Whether connections to it were refused, as they were when it was tried
            before.
        """
        address = next(self._addresses, None)
        if address is None:
            return False
        again = address in self._refused
        self._refused.discard(address)
        try:
            socket.create_connection(split_address(address), _LOOK_SECONDS).close()
        except ConnectionRefusedError:
            self._refused.add(address)
            return again
        except OSError:  # no answer: it may be cut off for a while, and come back
            return False
        return False


def accepts(address: str) -> bool:
    """Returns whether somebody accepts connections there."""
    try:
        with socket.create_connection(split_address(address), timeout=1.0) as sock:
            return not is_own(sock)
    except OSError:
        return False


def is_own(sock: socket.socket) -> bool:
    """Returns whether a connection's other end is itself.

    A port that nobody listens on may be the very one that the system chooses for
    the caller's end, and TCP then connects it to itself.
    """
    return sock.getsockname() == sock.getpeername()
