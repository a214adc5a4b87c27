"""Every way in which a run can end badly, each with its exit status.

A message says what was given, what is wrong and what to do about it. `main`
prints it without a traceback and exits with `exit_status`.
"""

import difflib
import os
import re
import signal
import sysconfig
import traceback
from collections.abc import Iterable
from typing import Any


class DtrainError(Exception):
    """A failure that dtrain understands.

    Attributes:
        exit_status: The status that the command ends with.
    """

    exit_status = 4


class UsageError(DtrainError):
    """Bad flags, config, cluster description, experiment or data file.

    Raised before training starts; starting the same command again cannot help.
    """

    exit_status = 2


class TaskUnavailable(DtrainError):
    """A task is missing, or was lost and could not be replaced."""

    exit_status = 3


class TasksLost(TaskUnavailable):
    """Tasks are lost, but what is done can be saved, and the run can go on.

    Attributes:
        tasks: which.
        undone: steps that were asked for, and never will be done.
    """

    undone = 0

    def __init__(self, message: str, tasks: Iterable[Any]):
        super().__init__(message)
        self.tasks = tuple(tasks)


class GivenUp(TaskUnavailable):
    """A task was waited for in vain: starting anything again cannot help."""


class TrainingFailed(DtrainError):
    """The model, the loss or the input pipeline failed while training."""

    exit_status = 4


class Interrupted(DtrainError):
    """A signal asked the run to stop; it saved a checkpoint, unless it was asked
    twice or had not begun.

    Args:
        signum: The signal's number, for instance `signal.SIGTERM`.
    """

    def __init__(self, signum: int):
        super().__init__(f"Stopped by {signal.Signals(signum).name}.")
        self.signum = signum
        self.exit_status = 128 + signum


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Returns " Did you mean NAME?" for the nearest known name, else ""."""
    near = difflib.get_close_matches(given, list(known), n=1)
    return f" Did you mean {near[0]}?" if near else ""


def describe(error: BaseException) -> str:
    """Returns an error of somebody else's code: its kind, first line and place.

    The place is the innermost line that is neither dtrain's nor an installed
    package's, since that is where the user can do something about it.
    """
    own = _own_frames(error)
    text = re.sub(r"\x1b\[\d*m", "", str(error))  # Keras writes in bold
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    if lines[0] == "in user code:":  # AutoGraph: a stack, and then the message
        lines = [lines[-1].removeprefix(f"{type(error).__name__}: ")]
    # Keras leads up to what the layer itself said.
    while lines[1:] and re.search("^Exception encountered when calling|:$", lines[0]):
        lines = lines[1:]
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    if isinstance(error, SyntaxError) and error.filename:
        return f"SyntaxError: {error.msg} ({error.filename}, line {error.lineno})"
    return f"{type(error).__name__}: {lines[0].rstrip('.')}{place}"


def describe_with_traceback(error: BaseException) -> str:
    """Returns `describe`, and below it the traceback through the user's own code."""
    if isinstance(error, DtrainError):  # which says all
        return str(error)
    frames = traceback.format_list(_own_frames(error))
    if not frames:
        return f"{describe(error)}."
    last = "".join(traceback.format_exception_only(error)).rstrip()
    lines = ["Traceback (most recent call last):\n", *frames, last]
    return f"{describe(error)}.\n{''.join(lines)}"


def passes_users_code(error: BaseException) -> bool:
    """Returns whether code that is the user's had a part in an error."""
    return bool(_own_frames(error))


def _own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Returns where an error passed through code that is the user's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_users(frame.filename)]
    if not own and error.__cause__ is not None:  # as of a StopIteration in a generator
        return _own_frames(error.__cause__)
    return own


def is_users(path: str) -> bool:
    """Returns whether a source file is neither dtrain's, nor an installed package's."""
    package = os.path.dirname(os.path.abspath(__file__)) + os.sep
    library = sysconfig.get_path("stdlib") + os.sep
    return (
        not path.startswith((package, library, "<"))
        and "__autograph_generated_file" not in path
        and f"{os.sep}site-packages{os.sep}" not in path
        and os.path.exists(path)
    )


def tidy(text: str) -> str:
    """Returns what TensorFlow says, in one line without graph and stack."""
    text = re.sub(r"\{\{.*?\}\}|\[\[.*?\]\]|\[Op:\w+\]", "", text)
    text = re.sub(
        r"Error in user-defined function passed to .*?: Iterator::\S+: ", "", text
    )
    text = re.sub(
        r"Failed to get element from worker \S+: (Failed to get an element, with a "
        r"nonretryable error: )?",
        "",
        text,
    )
    notes = ("Graph execution", "Detected at", "<stack", "File ", "Additional GRPC")
    lines = [re.sub(r"\s+", " ", line).strip() for line in text.splitlines()]
    count = r"\d+ root error\(s\) found|\(\d+\) \w+: "  # several at once: the first
    lines = [re.sub(f"^({count})", "", line).strip(" .") for line in lines]
    useful = [line for line in lines if line and not line.startswith(notes)]
    return (useful or ["no message"])[0].rstrip(".") + "."


def from_status(status: int, message: str) -> DtrainError:
    """Returns the error that stands for the exit status of another process.

    That process has decided: who follows it is not to be started again.
    """
    if status - 128 in set(signal.Signals):
        return Interrupted(status - 128)
    kinds = (UsageError, GivenUp, TrainingFailed)
    by_status = {kind.exit_status: kind for kind in kinds}
    return by_status.get(status, GivenUp)(message)
