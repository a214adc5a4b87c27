"""How the tasks of a synchronous run find each other before TensorFlow connects them.

TensorFlow's servers wait for each other inside one call, with Python locked: nobody
could say who is missing, hear Ctrl-C, or give up. So the tasks come together first.
The chief listens on its own address, every other task says there who it is, and when
all have come the chief sends them off to start their servers. These lines stay open
until all have connected: who is lost meanwhile is noticed. One line of JSON is one
message; nothing that is received is executed.
"""

import concurrent.futures
import contextlib
import json
import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from dtrain import errors, version
from dtrain.cluster.spec import Cluster, Task, split_address
from dtrain.console import Console
from dtrain.runtime import preflight

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 10.0
_LONGEST_MESSAGE = 1 << 20
_LONGEST_SHOWN = 300


def attend(
    cluster: Cluster,
    task: Task,
    timeout: float,
    console: Console,
    connect: Callable[[], Any],
    now: Callable[[], float] = time.monotonic,
) -> Any:
    """Brings all tasks of a cluster together, and has them connect.

    Args:
        cluster: chief and workers.
        task: which of them this process is.
        timeout: seconds to wait for all of them.
        console: every 10 s one line names who is missing.
        connect: starts this task's server and returns when all are connected; called
            in a thread, once all tasks are there.
        now: the clock, in seconds.

    Returns:
        What `connect` returned.

    Raises:
        TaskUnavailable: some did not come, or were lost on the way.
        UsageError: the chief has sent this task away.
    """
    wait = preflight.Wait(cluster, timeout, console, now)
    kind = _Host if task == cluster.chief else _Guest
    with contextlib.closing(kind(cluster, task, wait)) as side:
        side.gather()
        wait.restart()
        result = _start(connect)
        side.finish(result)
        return result.result()


def _start(function: Callable[[], Any]) -> concurrent.futures.Future:
    """Calls a function in a thread that keeps no process from ending."""
    result: concurrent.futures.Future = concurrent.futures.Future()

    def call():
        try:
            result.set_result(function())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return result


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

    def __init__(self, cluster: Cluster, task: Task, wait: preflight.Wait):
        self._cluster = cluster
        self._wait = wait
        self._lines: list[_Line] = []
        self._guests: dict[str, _Line] = {}
        self._wanted = [str(t) for t in cluster.tasks() if t != task]
        self._port = split_address(cluster.address(task))[1]

    def close(self) -> None:
        for line in self._lines:
            line.close()

    def gather(self) -> None:
        """Returns when all have come, and has told them."""
        told: list[str] = []
        with self._telling_errors(), _listen(self._port) as listener:
            while missing := [n for n in self._wanted if n not in self._guests]:
                if missing != told:
                    self._tell(missing=missing)
                    told = missing
                self._wait.check(self._tasks(missing))
                self._hear(listener)
        self._tell(go=True)

    def finish(self, connected: concurrent.futures.Future) -> None:
        """Returns when all have connected, or this task could not."""
        waiting = set(self._wanted)
        with self._telling_errors():
            while waiting or not connected.done():
                if connected.done() and connected.exception() is not None:
                    return
                for name, message in self._hear(None):
                    if "connected" in message:
                        waiting.discard(name)
                lost = sorted(waiting - self._guests.keys())
                if lost:
                    raise errors.TasksLost(
                        f"{', '.join(lost)} was lost while the tasks were connecting. "
                        "Its log says why.",
                        self._tasks(lost),
                    )
                self._wait.check(self._tasks(waiting) or [self._cluster.chief])
        self._tell(done=True)

    @contextlib.contextmanager
    def _telling_errors(self) -> Iterator[None]:
        try:
            yield
        except errors.DtrainError as error:
            is_loss = isinstance(error, errors.TasksLost)
            self._tell(status=error.exit_status, error=str(error), is_loss=is_loss)
            raise

    def _tell(self, **message: Any) -> None:
        for line in self._guests.values():
            line.send(**message)

    def _hear(self, listener: socket.socket | None) -> list[tuple[str, dict]]:
        """Takes in, for a moment, who comes and goes; returns what guests say."""
        said = []
        with selectors.DefaultSelector() as selector:
            if listener is not None:
                selector.register(listener, selectors.EVENT_READ)
            for line in self._lines:
                selector.register(line.sock, selectors.EVENT_READ, line)
            for key, _ in selector.select(_POLL_SECONDS):
                if key.data is None:
                    self._lines.append(_Line(listener.accept()[0]))
                    continue
                for message in key.data.receive():
                    name = self._name_of(key.data)
                    if name is not None and isinstance(message, dict):
                        said.append((name, message))
                    else:
                        self._greet(key.data, message)
        self._lines = [line for line in self._lines if line.is_open]
        self._guests = {n: line for n, line in self._guests.items() if line.is_open}
        return said

    def _tasks(self, names: Collection[str]) -> list[Task]:
        return [task for task in self._cluster.tasks() if str(task) in names]

    def _name_of(self, line: _Line) -> str | None:
        return next((n for n, other in self._guests.items() if other is line), None)

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
        self._wait.console.line(f"Sent away: {reason}")
        line.send(status=errors.UsageError.exit_status, error=reason)

    def _refusal(self, name: str, message: dict[str, Any]) -> str | None:
        ours = _greeting(self._cluster, name)
        name = _quote(name)
        for key, what in (("cluster", "cluster"), ("dtrain", "version of dtrain")):
            if message.get(key) != ours[key]:
                return (
                    f"{name} was started with another {what} than "
                    f"{self._cluster.chief}: {_quote(message.get(key))} instead of "
                    f"{_quote(ours[key])}. Start it again with the same."
                )
        if message["task"] in self._guests or message["task"] not in self._wanted:
            return (
                f"{name} is there already, as another process. Give each task its own "
                "index."
            )
        return None


class _Guest:
    """The side of all other tasks."""

    def __init__(self, cluster: Cluster, task: Task, wait: preflight.Wait):
        self._cluster = cluster
        self._task = task
        self._wait = wait
        self._line: _Line | None = None

    def close(self) -> None:
        if self._line is not None:
            self._line.close()

    def gather(self) -> None:
        """Returns when the chief says that all are there."""
        chief = self._cluster.chief
        hint = ""
        while True:
            self._wait.check([chief], hint)
            self._line = _call(self._cluster.address(chief))
            if self._line is not None:
                self._line.send(**_greeting(self._cluster, str(self._task)))
                if self._is_heard("go"):
                    return
                self._line.close()
                hint = (
                    "Somebody listens there, but not a chief that waits for this task: "
                    "an older run's, perhaps, or another program. "
                )
            time.sleep(_POLL_SECONDS)

    def finish(self, connected: concurrent.futures.Future) -> None:
        """Returns when the chief says that all have connected, or this task has not."""
        if self._is_heard("done", connected):
            return
        if not connected.done() or connected.exception() is None:
            raise errors.TasksLost(
                f"{self._cluster.chief}, the chief, was lost while the tasks were "
                "connecting.",
                [self._cluster.chief],
            )

    def _is_heard(
        self, word: str, connected: concurrent.futures.Future | None = None
    ) -> bool:
        """Waits for a word of the chief; returns whether it came.

        Args:
            connected: reported to the chief when it is done; its failure ends this.

        Raises:
            DtrainError: the chief said why this run cannot be.
        """
        missing = [str(self._cluster.chief)]  # until it says something
        told = False
        while self._line.is_open:
            tasks = [t for t in self._cluster.tasks() if str(t) in missing]
            self._wait.check(tasks, grace=_GRACE_SECONDS)  # the chief decides
            if connected is not None and connected.done() and not told:
                if connected.exception() is not None:
                    return False
                self._line.send(connected=True)
                told = True
            with selectors.DefaultSelector() as selector:
                selector.register(self._line.sock, selectors.EVENT_READ)
                if not selector.select(_POLL_SECONDS):
                    continue
            for message in self._line.receive():
                if not isinstance(message, dict):
                    return False
                if "error" in message:
                    if message.get("is_loss"):  # all start again, and meet anew
                        raise errors.TasksLost(message["error"], [])
                    raise errors.from_status(message["status"], message["error"])
                if word in message:
                    return True
                missing = message.get("missing", missing)
        return False


def _call(address: str) -> _Line | None:
    """Returns a connection, if somebody listens there."""
    try:
        sock = socket.create_connection(split_address(address), timeout=1.0)
    except OSError:
        return None
    if preflight.is_own(sock):
        sock.close()
        return None
    return _Line(sock)


def _greeting(cluster: Cluster, name: str) -> dict[str, Any]:
    return {
        "task": name,
        "cluster": cluster.to_dict(),
        "dtrain": version.__version__,
    }


def _listen(port: int) -> socket.socket:
    """Returns a socket that listens where TensorFlow's server will.

    Raises:
        TaskUnavailable: the port is taken.
    """
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True
            )
        return socket.create_server(("", port))
    except OSError as error:
        raise errors.TaskUnavailable(
            f"The chief cannot listen on port {port}: {error.strerror}. Stop what "
            "holds it, or give the chief another port in every task's command."
        ) from error


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _quote(value: Any) -> str:
    """Returns a stranger's value so that it can be shown: escaped, and not too long."""
    text = json.dumps(value) if not isinstance(value, str) else ascii(value)[1:-1]
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."
