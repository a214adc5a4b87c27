"""Which GPUs a task of a local cluster sees."""

import glob
from collections.abc import Mapping, Sequence

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
        found = _find(environ)
    return found[task.index % len(found)] if found else "-1"


def _find(environ: Mapping[str, str]) -> list[str]:
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        # As in CUDA: what follows the first invalid item is not visible.
        items = [item.strip() for item in chosen.split(",")]
        bad = next((i for i, item in enumerate(items) if item in ("", "-1")), None)
        return items[:bad]
    return [str(i) for i in range(len(glob.glob("/proc/driver/nvidia/gpus/*")))]
