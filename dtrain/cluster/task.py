"""One task of a cluster: its job and its index."""

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from dtrain import errors
from dtrain.cluster.address import quote

JOBS = ("chief", "worker", "ps", "evaluator")


@dataclasses.dataclass(frozen=True)
class Task:
    """One process with a role.

    Attributes:
        type: The job that it belongs to, one of `JOBS`.
        index: Its number in that job, from 0.

    Raises:
        UsageError: no such job, or an index that is no whole number from 0 up.
    """

    type: str
    index: int = 0

    def __post_init__(self):
        if self.type not in JOBS:
            raise errors.UsageError(
                f"A task of type {quote(self.type)} does not exist. "
                f"Choose one of: {', '.join(JOBS)}." + near_name(self.type, JOBS)
            )
        # A bool is an int to Python, but nobody means task number True.
        if type(self.index) is not int or self.index < 0:
            raise errors.UsageError(
                f"{quote(self.index)} is not the index of a {self.type} task. "
                "Give a whole number from 0 up."
            )

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"

    @property
    def file_name(self) -> str:
        """The task's name as a part of file names, for instance "ps-0"."""
        return f"{self.type}-{self.index}"


def read_index(index: Any, size: int, task_type: str, name: str) -> int:
    """Returns the index of a task, checked against the number of tasks.

    Args:
        index: What was given: a whole number, or one as a string (environment
            variables and some platforms' TF_CONFIG); `None` where nothing was.
        size: How many tasks the job has.
        task_type: The job, for messages.
        name: What messages call the index, for instance "--task_index".

    Raises:
        UsageError: no whole number, out of range, or missing where it is needed.
    """
    if size == 1:
        there_are = f"there is one {task_type} task"
        advice = "Give 0."
    else:
        there_are = f"there are {size} {task_type} tasks"
        advice = f"Give a whole number from 0 to {size - 1}."
    if index is None:
        if size == 1:
            return 0
        raise errors.UsageError(f"{name} is missing, and {there_are}. {advice}")
    text = index.strip() if isinstance(index, str) else quote(index)
    # Matched as text, so that true, 1.5, "1.0" and [1] all fail here.
    if not re.fullmatch(r"-?[0-9]+", text):
        raise errors.UsageError(
            f"{name}={quote(index)} is not a whole number. {advice}"
        )
    digits = text.lstrip("0") or "0"
    if text.startswith("-") or len(digits) > 9 or int(digits) >= size:
        raise errors.UsageError(
            f"{name}={quote(index)} is out of range: {there_are}. {advice}"
        )
    return int(digits)


def near_name(given: Any, known: Iterable[str]) -> str:
    """Returns `errors.did_you_mean` for what was given, in upper case or lower."""
    return errors.did_you_mean(str(given).lower(), known)
