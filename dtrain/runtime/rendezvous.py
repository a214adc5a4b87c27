"""How the tasks of a synchronous run find each other before TensorFlow connects them.

TensorFlow's servers wait for each other inside one call, with Python locked: nobody
could say who is missing, hear Ctrl-C, or give up. So the tasks come together first.
The chief listens on its own address, every other task says there who it is, and when
all have come the chief sends them off to start their servers. One line of JSON is
one message; nothing that is received is executed.
"""

import json
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from dtrain import errors, version
from dtrain.cluster.spec import Cluster, Task, split_address
from dtrain.console import Console

_SECONDS_BETWEEN_LINES = 10.0
_POLL_SECONDS = 0.1
_GRACE_SECONDS = 10.0
_LONGEST_MESSAGE = 1 << 20


def come_together(
    cluster: Cluster,
    task: Task,
    timeout: float,
    console: Console,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Returns when all tasks of a cluster are there.

    Args:
        cluster: chief and workers.
        task: which of them this process is.
        timeout: seconds to wait for all of them.
        console: every 10 s one line names who is missing.
        now: the clock, in seconds.

    Raises:
        TaskUnavailable: some did not come.
        UsageError: the chief has sent this task away.
    """
    clock = _Clock(cluster, timeout, console, now)
    if task == cluster.chief:
        _Host(cluster, clock).run()
    else:
        _Guest(cluster, task, clock).run()


class _Clock:
    """How long to wait, and what to say meanwhile."""

    def __init__(
        self,
        cluster: Cluster,
        timeout: float,
        console: Console,
        now: Callable[[], float],
    ):
        self._cluster = cluster
        self._timeout = timeout
        self._console = console
        self._now = now
        self._started = self._said = now()

    def check(self, missing: list[str], hint: str = "", grace: float = 0.0) -> None:
        """Says now and then who is missing.

        Args:
            missing: names of tasks.
            hint: a sentence for the error.
            grace: seconds beyond the time-out, for somebody else to decide.

        Raises:
            TaskUnavailable: they are missing for too long.
        """
        names = ", ".join(
            f"{task} ({self._cluster.address(task)})"
            for task in self._cluster.tasks()
            if str(task) in missing
        )
        if self._now() - self._started >= self._timeout + grace:
            raise errors.TaskUnavailable(
                f"No answer from {names} within --startup_timeout={self._timeout:g} s. "
                f"{hint}Start these tasks with the same host lists; see that the "
                "addresses are right and that no firewall is in between."
            )
        if self._now() - self._said >= _SECONDS_BETWEEN_LINES:
            self._said = self._now()
            self.say(f"Waiting for {names}.")

    def say(self, text: str) -> None:
        self._console.line(text)


class _Line:
    """One connection, read and written by whole messages."""

    def __init__(self, sock: socket.socket):
        sock.setblocking(False)
        self.sock = sock
        self.is_open = True
        self._rest = b""

    def send(self, **message: Any) -> None:
        try:
            self.sock.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.close()

    def receive(self) -> list[Any]:
        """Returns the messages that have come; `None` stands for what is none."""
        try:
            data = self.sock.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data or len(self._rest) > _LONGEST_MESSAGE:
            self.close()
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [_parse(line) for line in lines]

    def close(self) -> None:
        self.is_open = False
        self.sock.close()


class _Host:
    """The chief's side."""

    def __init__(self, cluster: Cluster, clock: _Clock):
        self._cluster = cluster
        self._clock = clock
        self._lines: list[_Line] = []
        self._guests: dict[str, _Line] = {}
        self._wanted = [str(t) for t in cluster.tasks() if t != cluster.chief]

    def run(self) -> None:
        _, port = split_address(self._cluster.address(self._cluster.chief))
        try:
            with _listen(port) as listener:
                told: list[str] = []
                while missing := self._missing():
                    if missing != told:
                        self._tell(missing=missing)
                        told = missing
                    self._clock.check(missing)
                    self._attend(listener)
            self._tell(go=True)
        except errors.DtrainError as error:
            self._tell(status=error.exit_status, error=str(error))
            raise
        finally:
            for line in self._lines:
                line.close()

    def _missing(self) -> list[str]:
        return [name for name in self._wanted if name not in self._guests]

    def _tell(self, **message: Any) -> None:
        for line in self._guests.values():
            line.send(**message)

    def _attend(self, listener: socket.socket) -> None:
        """Takes in who comes and who goes, for a moment."""
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            for line in self._lines:
                selector.register(line.sock, selectors.EVENT_READ, line)
            for key, _ in selector.select(_POLL_SECONDS):
                if key.data is None:
                    self._lines.append(_Line(listener.accept()[0]))
                    continue
                for message in key.data.receive():
                    self._greet(key.data, message)
        self._lines = [line for line in self._lines if line.is_open]
        self._guests = {n: line for n, line in self._guests.items() if line.is_open}

    def _greet(self, line: _Line, message: Any) -> None:
        """Lets a task in, or sends it away and says why: to both sides."""
        if not isinstance(message, dict) or "task" not in message:
            line.close()  # somebody else's program
            return
        name = str(message["task"])
        reason = self._refusal(name, message)
        if reason is None:
            self._guests[name] = line
            return
        self._clock.say(f"Sent away: {reason}")
        line.send(status=errors.UsageError.exit_status, error=reason)

    def _refusal(self, name: str, message: dict[str, Any]) -> str | None:
        ours = _greeting(self._cluster, name)
        for key, what in (("cluster", "cluster"), ("dtrain", "version of dtrain")):
            if message.get(key) != ours[key]:
                return (
                    f"{name} was started with another {what} than "
                    f"{self._cluster.chief}: {json.dumps(message.get(key))} instead of "
                    f"{json.dumps(ours[key])}. Start it again with the same."
                )
        if name in self._guests or name not in self._wanted:
            return (
                f"{name} is there already, as another process. Give each task its own "
                "index."
            )
        return None


class _Guest:
    """The side of all other tasks."""

    def __init__(self, cluster: Cluster, task: Task, clock: _Clock):
        self._cluster = cluster
        self._task = task
        self._clock = clock

    def run(self) -> None:
        chief = self._cluster.chief
        hint = ""
        while True:
            self._clock.check([str(chief)], hint)
            try:
                sock = socket.create_connection(
                    split_address(self._cluster.address(chief)), timeout=1.0
                )
            except OSError:
                time.sleep(_POLL_SECONDS)
                continue
            line = _Line(sock)
            try:
                line.send(**_greeting(self._cluster, str(self._task)))
                if self._listen(line):
                    return
            finally:
                line.close()
            hint = (
                "Somebody listens there, but not a chief that waits for this task: an "
                "older run's, perhaps, or another program. "
            )
            time.sleep(_POLL_SECONDS)

    def _listen(self, line: _Line) -> bool:
        """Returns whether the chief said that all are there; false if it is gone.

        Raises:
            DtrainError: the chief said why this run cannot be.
        """
        missing = [str(self._cluster.chief)]  # until it says something
        while line.is_open:
            self._clock.check(missing, grace=_GRACE_SECONDS)  # the chief decides
            with selectors.DefaultSelector() as selector:
                selector.register(line.sock, selectors.EVENT_READ)
                if not selector.select(_POLL_SECONDS):
                    continue
            for message in line.receive():
                if not isinstance(message, dict):
                    return False
                if "error" in message:
                    raise errors.from_status(message["status"], message["error"])
                if "go" in message:
                    return True
                missing = message.get("missing", missing)
        return False


def _greeting(cluster: Cluster, name: str) -> dict[str, Any]:
    return {
        "task": name,
        "cluster": cluster.to_dict(),
        "dtrain": version.__version__,
    }


def _listen(port: int) -> socket.socket:
    """Returns a socket that listens where TensorFlow's server will."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", port), family=socket.AF_INET6, dualstack_ipv6=True
        )
    return socket.create_server(("", port))


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
