"""What TensorFlow's errors mean to the person who started the run."""

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from dtrain import errors

NO_BATCH = (
    "train_data gives no batch: there are no examples in it, or in this worker's part "
    "of it. With drop_remainder=True a batch must not be larger than that."
)

# What gRPC's server says of a request that came without all of its bytes. Seen once,
# right after a new chief had come: another try is as right as after a lost connection.
_CUT_OFF = "Unable to parse request"


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turns TensorFlow's errors into dtrain's."""
    try:
        yield
    except tf.errors.OpError as error:
        raise explain(error) from error


def explain(error: tf.errors.OpError) -> errors.DtrainError:
    """Returns the dtrain error for what TensorFlow raised while training.

    The whole TensorFlow message stays in the log, as the cause.
    """
    text = error.message
    is_cut_off = isinstance(error, tf.errors.InternalError) and _CUT_OFF in text
    if is_cut_off or isinstance(error, tf.errors.UnavailableError):
        tasks = re.findall(r"/job:(worker|ps)/replica:\d+/task:(\d+)", text)
        who = ":".join(tasks[0]) if tasks else "a task"
        return errors.TaskUnavailable(
            f"The connection to {who} is lost: {errors.tidy(text)}"
        )
    if isinstance(error, tf.errors.OutOfRangeError):
        return errors.TrainingFailed(NO_BATCH)
    if isinstance(error, tf.errors.NotFoundError):
        return errors.TrainingFailed(
            f"{errors.tidy(text)} The process that reads a file has to see it: each "
            "worker, on its own machine, at the same path."
        )
    return errors.TrainingFailed(f"{type(error).__name__}: {errors.tidy(text)}")


def describe_input(error: tf.errors.OpError) -> str | None:
    """Returns what failed in a pipeline, with the user's traceback if it has one.

    Args:
        error: of a step.

    Returns:
        `None` if it is not the pipeline that failed.
    """
    text = error.message
    if isinstance(error, tf.errors.OutOfRangeError):
        return NO_BATCH
    if "IteratorGetNext" not in text:
        return None
    frames = _users_frames(text)
    if not frames:
        return explain(error).args[0]
    # What was raised is the user's: TensorFlow's name for it tells nothing.
    head = errors.tidy(text)
    lines = ["Traceback (most recent call last):", *frames, head.rstrip(".")]
    return "\n".join([head, *lines])


def _users_frames(text: str) -> list[str]:
    """Returns the lines of a traceback, in a message, that are the user's."""
    frames, own = [], False
    for line in text.splitlines():
        match = re.match(r'  File "(.+)", line \d+, in ', line)
        if match:
            own = errors.is_users(match[1])
        elif line.strip() and not line.startswith("    "):
            own = False
        if own and line.strip() and line not in frames:
            frames.append(line)
    return frames
