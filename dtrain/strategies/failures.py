"""What TensorFlow's errors mean to the person who started the run."""

import re

import tensorflow as tf

from dtrain import errors


def explain(error: tf.errors.OpError) -> errors.DtrainError:
    """Returns the dtrain error for what TensorFlow raised while training.

    The whole TensorFlow message stays in the log, as the cause.
    """
    text = error.message
    if isinstance(error, tf.errors.UnavailableError):
        task = re.search(r"/job:(\w+)/replica:\d+/task:(\d+)", text)
        who = f"{task[1]}:{task[2]}" if task else "a task"
        return errors.TaskUnavailable(
            f"The connection to {who} is lost: {_first_line(text)}"
        )
    if isinstance(error, tf.errors.OutOfRangeError):
        return errors.TrainingFailed(
            "train_data ended without a batch. With drop_remainder=True a batch must "
            "not be larger than a worker's share of the data."
        )
    if isinstance(error, tf.errors.NotFoundError):
        return errors.TrainingFailed(
            f"{_first_line(text)} Under --strategy=ps each worker reads the data on "
            "its own machine, at the path that the chief knows."
        )
    return errors.TrainingFailed(f"{type(error).__name__}: {_first_line(text)}")


def _first_line(text: str) -> str:
    """Returns the sentence for people, without TensorFlow's notes around it."""
    text = re.sub(r"\{\{.*?\}\}|\[\[.*?\]\]", "", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    useful = [
        line
        for line in lines
        if not line.startswith(("Detected at node", "Additional GRPC", ":{", "node "))
    ]
    line = re.sub(r"\s+", " ", (useful or lines or ["no message"])[0])
    return line if line.endswith(".") else line + "."
