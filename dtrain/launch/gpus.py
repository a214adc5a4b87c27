"""Which GPUs a task of a local cluster sees."""

import glob
import os
from collections.abc import Mapping, Sequence

from dtrain import errors
from dtrain.cluster.spec import Task


def visible_to(
    task: Task, environ: Mapping[str, str], found: Sequence[str] | None = None
) -> str:
    """Returns the task's CUDA_VISIBLE_DEVICES.

    Each worker gets one GPU, its own as long as there are enough; ps and chief
    get none, because they hold variables and drive.

    Args:
        task: whose.
        environ: where the user may have chosen among the GPUs already.
        found: names of this machine's GPUs; looked up if not given.
    """
    if task.type != "worker":
        return "-1"
    if found is None:
        found = find(environ)
    return found[task.index % len(found)] if found else "-1"


def share(
    rank: int,
    sharing: int,
    count: int | None,
    environ: Mapping[str, str],
    found: Sequence[str] | None = None,
) -> str:
    """Returns the CUDA_VISIBLE_DEVICES of one of several tasks on this machine.

    Each gets GPUs of its own.

    Args:
        rank: which of the tasks on this machine it is, 0-based.
        sharing: how many there are.
        count: GPUs a task; by default they are dealt out evenly.
        environ: where the user may have chosen among the GPUs already.
        found: names of this machine's GPUs; looked up if not given.

    Raises:
        UsageError: there are not enough.
    """
    if found is None:
        found = find_real(environ)
    if not found:
        return "-1"
    each = count or max(1, len(found) // sharing)
    if each * sharing > len(found):
        raise errors.UsageError(
            f"{sharing} tasks with {each} GPU{'s' * (each != 1)} each need "
            f"{each * sharing}, but this machine has {len(found)}: "
            f"{','.join(found)}. Start fewer tasks, or train on CPUs with "
            "CUDA_VISIBLE_DEVICES=-1."
        )
    return ",".join(found[rank * each : (rank + 1) * each])


def find(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the names of this machine's GPUs, as far as the user shows them."""
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        # As in CUDA: what follows the first invalid item is not visible.
        items = [item.strip() for item in chosen.split(",")]
        bad = next((i for i, item in enumerate(items) if item in ("", "-1")), None)
        return items[:bad]
    return [str(index) for index in range(len(_list_devices()))]


def find_real(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns `find`'s GPUs if there are any: a variable that names some makes none."""
    return find(environ) if _list_devices() else []


def _list_devices() -> list[str]:
    # The second is that of Linux under Windows.
    return glob.glob("/proc/driver/nvidia/gpus/*") or glob.glob("/dev/dxg")
