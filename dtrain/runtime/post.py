"""One task as its chief sees it: looked at, judged, and spoken to.

`identity` is what a task shows of itself; `Post` compares it with what is wanted, and
keeps the heartbeat going from then on.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from dtrain import version
from dtrain.cluster.spec import Cluster, Task
from dtrain.launch.life import Life
from dtrain.runtime import contact, mailbox

_POLL_SECONDS = 0.2
TELL_SECONDS = 5.0
_SHORT_TRY_SECONDS = 1.0
_LEFT = 143  # the status of a task that was asked to leave


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


class Post:
    """One task that is watched.

    Attributes:
        task: who.
        is_ready: it is the right one, and obeys this chief.
        is_silent: its machine did not answer when it was last asked.
        is_leaving: it was asked to leave, and waits for a word.
        is_spare: the run does without it.
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
        self.is_ready = self.is_silent = self.is_over = False
        self.is_leaving = self.has_left = self.is_spare = False
        self.boot: str | None = None
        self.restarts: list[dict[str, Any]] = []
        self.failure: Exception | None = None
        self._address = address
        self._wanted = {**wanted, "task": str(task)}
        self._me = me
        self._now = now
        self._problem = "was not looked at yet"
        self._answers = False
        self._failures = 0  # in a row
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
                    shown = self._contact.exchange(None, TELL_SECONDS)
                    if self._find_fault(shown) or not self._obeys(shown):
                        return False
                self._contact.exchange(message, TELL_SECONDS)
            except contact.Unreachable:
                return False
            self.is_over = for_good
            self.has_left = True
            return True

    def let_leave(self) -> None:
        """Lets it leave if it was asked to, and does nothing for the run."""
        if self.is_ready and self.is_leaving and not self.has_left:
            self.leave(_LEFT, for_good=False)

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
            if self.is_spare:
                self.let_leave()
            # One that does not answer is asked again at once.
            time.sleep(self._me["every"] if self._answers else _POLL_SECONDS)

    def _look(self) -> None:
        self._answers = False
        beat = {"do": mailbox.BEAT, "chief": self._me} if self.is_ready else None
        try:
            shown = self._contact.exchange(beat, self._patience())
            self._failures = 0
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
                self.is_silent = False
        except contact.Unreachable as error:
            self._problem, self.is_silent = str(error), error.is_silent
            self._failures += 1

    def _patience(self) -> float:
        """Returns for how many seconds to wait for an answer.

        A link that comes back is noticed by a connection that is made anew, so most
        tries are short; some are long, for a link that is slow.
        """
        is_short = self._failures % 3
        return _SHORT_TRY_SECONDS if is_short else max(3.0, self._me["every"])

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
                {"do": mailbox.BEAT, "chief": self._me}, TELL_SECONDS
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
        self._contact.exchange({"do": mailbox.AGAIN}, TELL_SECONDS)
        return False

    def _obeys(self, shown: dict[str, Any]) -> bool:
        return shown["chief"] is None or shown["chief"]["run"] == self._me["run"]
