"""How many of this machine's processors a task computes with, and whether alone."""

import os
from collections.abc import Mapping

from dtrain.cluster.spec import Task

_VARIABLE = "TF_NUM_INTRAOP_THREADS"  # which TensorFlow reads


def threads(
    task: Task,
    num_workers: int,
    environ: Mapping[str, str],
    found: int | None = None,
) -> dict[str, str]:
    """Returns what the task's environment says of it.

    Workers share the processors. Otherwise TensorFlow has each of them cut every
    operation up for all: where they are busy, that costs time and gains none
    (docs/design.md). A ps updates while they compute, and gets as many as one of
    them. A chief, which evaluates while others wait, and an evaluator get no limit.

    Args:
        task: whose.
        num_workers: how many there are.
        environ: where the user may have chosen.
        found: how many processors there are; looked up if not given.
    """
    if _VARIABLE in environ or task.type not in ("worker", "ps"):
        return {}
    found = _find() if found is None else found
    return {_VARIABLE: str(max(1, found // num_workers))}


def are_shared(environ: Mapping[str, str], found: int | None = None) -> bool:
    """Returns whether others compute on the processors that this task leaves.

    Args:
        environ: of the task.
        found: how many processors there are; looked up if not given.
    """
    own = environ.get(_VARIABLE, "")
    return own.isdecimal() and 0 < int(own) < (_find() if found is None else found)


def _find() -> int:
    return len(os.sched_getaffinity(0))
