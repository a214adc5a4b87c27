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

from dtrain import errors
from dtrain.cluster.spec import Cluster, Task
from dtrain.console import Console
from dtrain.launch.life import Life
from dtrain.runtime.post import TELL_SECONDS, Post, jobs_of

BEATS = 15  # in one heartbeat time-out
_POLL_SECONDS = 0.2
_SECONDS_BETWEEN_LINES = 10.0
_STUCK_SECONDS = 8.0  # for the main thread to hear of a loss
_BUSY_SECONDS = 60.0  # ... if it can still save what there is
_END_SECONDS = 120.0  # for it to save what there is, and to start again


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
        self._posts = [Post(t, cluster.address(t), wanted, me, now) for t in tasks]
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
            for post in self._posts:  # it need not wait until all are there
                post.let_leave()
            missing = [p for p in self._posts if p.has_left or not p.is_ready]
            is_late = self._now() - started >= self._timeout
            if is_later and is_late:
                optional = [*optional, *self._silent_workers()]
            needed = [post for post in missing if post.task not in optional]
            if not needed and all(post.is_silent or is_late for post in missing):
                for post in missing:
                    post.is_spare = True
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
        lost = self._find_lost()
        if not lost:
            return
        self.is_handled = True
        raise _describe_loss(lost, self._timeout)

    def _find_lost(self) -> list[Post]:
        return [post for post in self._members() if post.is_lost(self._timeout)]

    def _members(self) -> list[Post]:
        """Returns those who take part; one that comes too late waits for a new life."""
        return [post for post in self._posts if not post.is_spare]

    def _check_posts(self) -> None:
        for post in self._posts:
            if post.failure is not None:
                raise post.failure

    def watch_over(self, start_again: Callable[[errors.TaskUnavailable], None]) -> None:
        """From now on, ends this life if the main thread cannot.

        It may be waiting, inside TensorFlow, for the very task that is lost. If it does
        so with Python locked, no other thread can act either, and no task hears of this
        one: then the process ends, for its supervisor to start it again. Only for a
        process that is dtrain's own.

        Args:
            start_again: called with the loss.
        """

        def look() -> None:
            since = None  # when the loss was seen that is still there
            while not self._is_over:
                faulthandler.dump_traceback_later(self._timeout, exit=True)
                time.sleep(_POLL_SECONDS)
                lost = self._find_lost()
                since = (since or self._now()) if lost else None
                patience = _STUCK_SECONDS
                if self.is_handled:
                    patience = _END_SECONDS
                elif all(post.task.type == "worker" for post in lost):
                    patience = _BUSY_SECONDS
                if since is not None and self._now() - since > patience:
                    start_again(_describe_loss(lost, self._timeout))
            faulthandler.cancel_dump_traceback_later()

        threading.Thread(target=look, daemon=True).start()

    def spares(self) -> list[Task]:
        """Returns the tasks that the run does without."""
        return [post.task for post in self._posts if post.is_spare]

    def leaving(self) -> list[Task]:
        """Returns the tasks that were asked to leave, and wait for a word."""
        return [post.task for post in self._members() if post.is_leaving]

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

        def tell(post: Post) -> None:
            deadline = self._now() + patience
            while not post.leave(status):
                is_known = post.boot is not None or post.is_spare
                if self._now() >= deadline or is_known:
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
            thread.join(patience + TELL_SECONDS)
        for post in self._posts:  # who was not told is not this run's any more
            post.is_over = True
        return [post.task for post in self._posts if post.task not in told]


def _describe_loss(lost: list[Post], timeout: float) -> errors.TaskUnavailable:
    text = " ".join(post.describe(timeout) for post in lost)
    if all(post.task.type == "worker" for post in lost):
        return errors.TasksLost(text, [post.task for post in lost])
    return errors.TaskUnavailable(text)
