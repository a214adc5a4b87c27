"""The chief's eye on the other tasks, and its voice: a thread for each of them.

Before training, each task is looked at until it is the right one and ready. From then
on each side hears the other every few seconds (the heartbeat); one that is silent for
longer than the time-out is lost, though its connection may look alive for a quarter of
an hour more. The task's side is in `leash.py`.
"""

import faulthandler
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from dtrain import errors, version
from dtrain.cluster.spec import Cluster, Task
from dtrain.console import Console
from dtrain.launch.life import Life
from dtrain.runtime import contact, mailbox

BEATS = 10  # in one heartbeat time-out
_POLL_SECONDS = 0.2
_SECONDS_BETWEEN_LINES = 10.0
_TELL_SECONDS = 5.0
_STUCK_SECONDS = 8.0  # for the main thread to hear of a loss
_END_SECONDS = 120.0  # for it to save what there is, and to start again


def jobs_of(cluster: Cluster) -> dict[str, list[str]]:
    """Returns the part of a cluster that all its tasks agree on.

    In the TF1 layout a ps does not know where the chief is.
    """
    return {j: a for j, a in cluster.to_dict().items() if j in ("worker", "ps")}


def identity(cluster: Cluster, task: Task, strategy: str, life: Life) -> dict[str, Any]:
    """Returns what a task shows of itself, for its mailbox."""
    return {
        "task": str(task),
        "cluster": jobs_of(cluster),
        "strategy": strategy,
        "dtrain": version.__version__,
        "tensorflow": tf.__version__,
        "restarts": list(life.restarts),
        "chief": None,  # whom it obeys
        "beats": 0,
        "is_leaving": False,  # it was asked to, and waits for the chief's word
    }


class Watch:
    """All tasks that the chief has to keep in touch with.

    Args:
        cluster: as it is described.
        tasks: whom to watch.
        strategy: of the run; tasks of another one are not taken.
        life: the chief's own.
        heartbeat_timeout: seconds of silence after which a task is lost.
        now: the clock, in seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        tasks: Iterable[Task],
        strategy: str,
        life: Life,
        heartbeat_timeout: float,
        now: Callable[[], float] = time.monotonic,
    ):
        self._timeout = heartbeat_timeout
        self._now = now
        me = {
            "run": life.run,
            "boot": uuid.uuid4().hex,
            "who": f"process {os.getpid()} on {socket.gethostname()}",
            "every": heartbeat_timeout / BEATS,
            "timeout": heartbeat_timeout,
        }
        wanted = {"cluster": jobs_of(cluster), "strategy": strategy}
        self._posts = [_Post(t, cluster.address(t), wanted, me, now) for t in tasks]
        self.is_handled = False  # somebody deals with a loss already
        self._is_over = False

    def start(self) -> None:
        """Begins to look."""
        for post in self._posts:
            post.start()

    def wait(
        self,
        timeout: float,
        console: Console,
        check: Callable[[], None],
        optional: Iterable[Task] = (),
        is_later: bool = False,
    ) -> list[Task]:
        """Returns when all are ready, but for those that need not be.

        Args:
            timeout: seconds to wait for all of them.
            console: every 10 s one line says who is missing, and why.
            check: called while waiting; raises what should end the wait.
            optional: who was lost before; they are not waited for.
            is_later: the run has had all tasks once. Then a worker whose machine does
                not answer is waited for no longer than for a heartbeat, if another
                worker is there.

        Returns:
            Those that are done without.

        Raises:
            GivenUp: others are still missing.
        """
        started = said = self._now()
        while True:
            self._check_posts()
            missing = [post for post in self._posts if not post.is_ready]
            if is_later and self._now() - started >= self._timeout:
                optional = [*optional, *self._silent_workers()]
            needed = [post for post in missing if post.task not in optional]
            if not needed and all(post.is_seen for post in missing):
                return [post.task for post in missing]
            check()
            if self._now() - started >= timeout:
                raise errors.GivenUp(self._describe_missing(timeout))
            if self._now() - said >= _SECONDS_BETWEEN_LINES:
                said = self._now()
                console.line(f"Waiting: {'; '.join(map(str, missing))}.")
            time.sleep(_POLL_SECONDS)

    def _silent_workers(self) -> list[Task]:
        workers = [post for post in self._posts if post.task.type == "worker"]
        silent = [post for post in workers if post.is_silent and not post.is_ready]
        return [post.task for post in silent] if len(silent) < len(workers) else []

    def _describe_missing(self, timeout: float) -> str:
        ready = sum(post.is_ready for post in self._posts)
        rows = "\n".join(f"  {post.row()}" for post in self._posts)
        return (
            f"{len(self._posts) - ready} of {len(self._posts)} tasks are not ready "
            f"within --startup_timeout={timeout:g} s:\n{rows}\n"
            "Start what is missing with the same host lists, and stop what is in its "
            "place."
        )

    def check(self) -> None:
        """Looks once, between steps.

        Raises:
            TasksLost: workers are silent, or were asked to leave.
            TaskUnavailable: another task is lost, or was started again, and what it
                held with it.
        """
        self._check_posts()
        lost = [post for post in self._posts if post.is_lost(self._timeout)]
        if not lost:
            return
        self.is_handled = True
        raise _describe_loss(lost, self._timeout)

    def _check_posts(self) -> None:
        for post in self._posts:
            if post.failure is not None:
                raise post.failure

    def watch_over(self, start_again: Callable[[errors.TaskUnavailable], None]) -> None:
        """From now on, ends this life if the main thread cannot.

        It may be waiting, inside TensorFlow, for the very task that is lost. If it does
        so with Python locked, no other thread can act either, and no task hears of this
        one: then the process ends, for its supervisor to start it again.

        Args:
            start_again: called with the loss.
        """

        def look() -> None:
            since = (
                None  # when a loss was seen that nobody deals with, or not to an end
            )
            while not self._is_over:
                faulthandler.dump_traceback_later(self._timeout, exit=True)
                time.sleep(_POLL_SECONDS)
                lost = [post for post in self._posts if post.is_lost(self._timeout)]
                since = (since or self._now()) if lost else None
                patience = _END_SECONDS if self.is_handled else _STUCK_SECONDS
                if since is not None and self._now() - since > patience:
                    start_again(_describe_loss(lost, self._timeout))
            faulthandler.cancel_dump_traceback_later()

        threading.Thread(target=look, daemon=True).start()

    def leaving(self) -> list[Task]:
        """Returns the tasks that were asked to leave, and wait for a word."""
        return [post.task for post in self._posts if post.is_leaving]

    def boot(self, task: Task) -> str | None:
        """Returns what names the process that is this task now."""
        return next(post.boot for post in self._posts if post.task == task)

    def restarts(self) -> list[dict[str, Any]]:
        """Returns what supervisors have noted of all tasks' restarts."""
        return [record for post in self._posts for record in post.restarts]

    def tell(self, task: Task, status: int) -> bool:
        """Tells one task to leave with a status; returns whether it was reached."""
        post = next(post for post in self._posts if post.task == task)
        return post.leave(status, for_good=False)

    def part(self, status: int, patience: float) -> list[Task]:
        """Ends the run: tells every task to leave.

        Args:
            status: the exit status to leave with.
            patience: seconds for tasks to appear that start when the chief does.

        Returns:
            Those that could not be told.
        """
        self.is_handled = self._is_over = True
        told: set[Task] = set()

        def tell(post: _Post) -> None:
            deadline = self._now() + patience
            while not post.leave(status):
                if self._now() >= deadline or post.boot is not None:
                    return
                time.sleep(_POLL_SECONDS)
            told.add(post.task)

        threads = [
            threading.Thread(target=tell, args=(post,), daemon=True)
            for post in self._posts
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(patience + _TELL_SECONDS)
        return [post.task for post in self._posts if post.task not in told]


class _Post:
    """One task that is watched.

    Attributes:
        task: who.
        is_seen: it was looked at.
        is_ready: it is the right one, and obeys this chief.
        is_silent: its machine did not answer when it was last asked.
        is_leaving: it was asked to leave, and waits for a word.
        has_left: it was told to, and nobody has come in its place.
        is_over: it is not watched any more.
        boot: names its process; `None` if it has never been reached.
        restarts: what its supervisor has noted.
        failure: why it is not watched any more, though it should be.
    """

    def __init__(
        self,
        task: Task,
        address: str,
        wanted: dict[str, Any],
        me: dict[str, Any],
        now: Callable[[], float],
    ):
        self.task = task
        self.is_seen = self.is_ready = self.is_silent = self.is_over = False
        self.is_leaving = self.has_left = False
        self.boot: str | None = None
        self.restarts: list[dict[str, Any]] = []
        self.failure: Exception | None = None
        self._address = address
        self._wanted = {**wanted, "task": str(task)}
        self._me = me
        self._now = now
        self._problem = "was not looked at yet"
        self._answers = False
        self._heard = now()
        self._first_boot: str | None = None  # of the process that training began with
        self._foreign: tuple[Any, float] | None = None  # another chief's, since when
        self._contact = contact.Contact(address)
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return f"{self.task} ({self._address}) {self._problem}"

    def row(self) -> str:
        """Returns a line of the table of tasks."""
        state = "is ready" if self.is_ready else self._problem
        return f"{self.task!s:<10} {self._address:<22} {state}"

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def is_lost(self, timeout: float) -> bool:
        """Returns whether it is silent for too long, or a ps of another life."""
        if not self.is_ready or self.has_left:
            return False
        is_new = self.task.type != "worker" and self.boot != self._first_boot
        return is_new or self._now() - self._heard > timeout

    def describe(self, timeout: float) -> str:
        if self.boot != self._first_boot and self.task.type != "worker":
            return f"{self.task} was started again, and holds nothing any more."
        return (
            f"{self.task} ({self._address}) is silent for longer than "
            f"--heartbeat_timeout={timeout:g} s."
        )

    def leave(self, status: int, for_good: bool = True) -> bool:
        """Tells it to leave, if it is this chief's; returns whether it was told.

        Args:
            status: to leave with.
            for_good: nobody comes in its place.
        """
        message = {"do": mailbox.LEAVE, "status": status}
        with self._lock:
            try:
                if not self.is_ready:
                    shown = self._contact.exchange(None, _TELL_SECONDS)
                    if self._find_fault(shown) or not self._obeys(shown):
                        return False
                self._contact.exchange(message, _TELL_SECONDS)
            except contact.Unreachable:
                return False
            self.is_over = for_good
            self.has_left = True
            return True

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # a flaw: whoever relies on this has to know
            self.failure = error

    def _watch(self) -> None:
        while not self.is_over:
            with self._lock:
                if not self.is_over:
                    self._look()
            self.is_seen = True
            # One that does not answer is asked again at once.
            time.sleep(self._me["every"] if self._answers else _POLL_SECONDS)

    def _look(self) -> None:
        self._answers = False
        beat = {"do": mailbox.BEAT, "chief": self._me} if self.is_ready else None
        try:
            shown = self._contact.exchange(beat, max(2.0, self._me["every"]))
            fault = self._find_fault(shown)
            if fault is not None:
                self._problem = fault
            elif self.is_ready or self._take(shown):
                self._answers = True
                self._heard = self._now()
                self.has_left &= self.boot == shown["boot"]
                self.boot = shown["boot"]
                self._first_boot = self._first_boot or self.boot
                self.restarts = shown["restarts"]
                self.is_leaving = shown["is_leaving"]
        except contact.Unreachable as error:
            self._problem, self.is_silent = str(error), error.is_silent

    def _find_fault(self, shown: dict[str, Any]) -> str | None:
        """Returns why this is not the task that is looked for."""
        here = {"dtrain": version.__version__, "tensorflow": tf.__version__}
        what = {"dtrain": "dtrain", "tensorflow": "TensorFlow"}
        for name, own in here.items():
            if shown.get(name) != own:
                return f"runs {what[name]} {shown.get(name)}, the chief runs {own}"
        if shown["cluster"] != self._wanted["cluster"]:
            return (
                f"belongs to another cluster: as process {shown['pid']} on "
                f"{shown['host']} it is {shown['task']} of {shown['cluster']}"
            )
        if shown["task"] != self._wanted["task"]:
            return f"was started as {shown['task']}: its index or job is wrong"
        if shown["strategy"] != self._wanted["strategy"]:
            return (
                f"was started with --strategy={shown['strategy']}, the chief with "
                f"--strategy={self._wanted['strategy']}"
            )
        return None

    def _take(self, shown: dict[str, Any]) -> bool:
        """Makes a task this chief's; returns whether it is."""
        chief = shown["chief"]
        if chief is None:  # fresh
            self._contact.exchange(
                {"do": mailbox.BEAT, "chief": self._me}, _TELL_SECONDS
            )
            self.is_ready = True
            return True
        # It holds what belongs to another chief, who may be living.
        beats = shown["boot"], shown["beats"]
        if self._foreign is None or self._foreign[0] != beats:
            self._foreign = beats, self._now()
        silence = self._now() - self._foreign[1]
        if chief["run"] != self._me["run"] and silence < 1.6 * chief["every"]:
            self._problem = (
                f"obeys another chief, {chief['who']}, which trains now. Stop that "
                "run, or give this one other ports"
            )
            return False
        self._problem = "starts again, to serve a new chief"
        self._contact.exchange({"do": mailbox.AGAIN}, _TELL_SECONDS)
        return False

    def _obeys(self, shown: dict[str, Any]) -> bool:
        return shown["chief"] is None or shown["chief"]["run"] == self._me["run"]


def _describe_loss(lost: list[_Post], timeout: float) -> errors.TaskUnavailable:
    text = " ".join(post.describe(timeout) for post in lost)
    if all(post.task.type == "worker" for post in lost):
        return errors.TasksLost(text, [post.task for post in lost])
    return errors.TaskUnavailable(text)
