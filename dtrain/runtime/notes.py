"""What the tasks of a synchronous run tell each other beside their collectives.

A collective can only be waited for. A task that fails while the others wait in one
leaves a note with the coordination service, the key-value store that TensorFlow runs
in the chief's process for every multi-worker run; the others read it, give up what
they wait for, and know the first cause, not just that a connection broke.
"""

import dataclasses
import json
import threading

import tensorflow as tf

# The store has no public name; it has been the same from TensorFlow 2.11 to 2.21.
from tensorflow.python.eager import context

from dtrain.cluster.spec import Task

_FAILURE = "dtrain/failure"
_POLL_MS = 200


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a run ends.

    Attributes:
        task: who says so, for instance "worker:1".
        status: the exit status of all tasks.
        message: for people; empty if they need none.
    """

    task: str
    status: int
    message: str


class Notes:
    """This task's access to the store. Make it once all tasks have met.

    Args:
        task: which one this is.
        chief: which one keeps the store.
    """

    def __init__(self, task: Task, chief: Task):
        self._task = task
        self._chief = chief
        self._failure: Failure | None = None
        self._heard = threading.Event()
        self._is_over = False
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def failure(self) -> Failure | None:
        """The first failure that anybody told of."""
        return self._failure

    def fail(self, status: int, message: str) -> None:
        """Tells all tasks that the run is over; the first one to say so counts."""
        failure = Failure(str(self._task), status, message)
        try:
            _store(_FAILURE, json.dumps(dataclasses.asdict(failure)))
        except tf.errors.OpError:
            return  # somebody was faster, or the chief is gone: `_listen` hears of it

    def wait_for_failure(self, seconds: float) -> Failure | None:
        """Returns the failure, giving it that long to arrive."""
        self._heard.wait(seconds)
        return self._failure

    def write(self, name: str, text: str) -> None:
        """Leaves a note of this task's own."""
        _store(f"dtrain/{name}/{self._task}", text)

    def read(self, name: str, task: Task) -> str | None:
        """Returns a task's note; `None` if there is none within a moment."""
        key = f"dtrain/{name}/{task}"
        try:
            return context.context().get_config_key_value(key, _POLL_MS)
        except (tf.errors.DeadlineExceededError, tf.errors.NotFoundError):
            return None

    def close(self) -> None:
        """Stops reacting: the run has ended well."""
        self._is_over = True

    def _listen(self) -> None:
        try:
            text = context.context().get_config_key_value(_FAILURE)
            failure = Failure(**json.loads(text))
        except tf.errors.OpError:
            failure = Failure(
                str(self._task), 3, f"The chief, {self._chief}, is lost: no connection."
            )
        if self._is_over:
            return
        self._failure = failure
        self._heard.set()
        # Whoever waits in a collective would wait for a task that does not come.
        abort_collectives(tf.errors.ABORTED, "the run is over")


def abort_collectives(code: int, why: str) -> None:
    """Has whatever waits in a collective of this process fail, now and from now on."""
    context.context().abort_collective_ops(code, why)


def _store(key: str, value: str) -> None:
    context.context().set_config_key_value(key, value)
