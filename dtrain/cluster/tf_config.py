"""TF_CONFIG, in which a platform tells each process its cluster and its task.

A JSON object: {"cluster": {"worker": ["host:port", ...], ...},
"task": {"type": "worker", "index": 0}}. Other keys are left alone.
"""

import json
from typing import Any

from dtrain import errors
from dtrain.cluster.address import quote
from dtrain.cluster.spec import Cluster, Task
from dtrain.cluster.task import read_index

_EXAMPLE = (
    'Write {"cluster": {"worker": ["host:port"], "ps": ["host:port"]}, '
    '"task": {"type": "worker", "index": 0}}.'
)
_MASTER_NOTICE = 'TF_CONFIG says "master", the old name of the chief; taken as "chief".'


def is_there(text: str | None) -> bool:
    """Returns whether a value of the variable TF_CONFIG describes anything.

    Platforms set it to nothing, or to an empty object, for a job of one process.
    """
    return text is not None and "".join(text.split()) not in ("", "{}")


def build(cluster: Cluster, task: Task) -> str:
    """Returns the TF_CONFIG of one task of a cluster, as JSON.

    Raises:
        UsageError: the cluster has no such task. An evaluator need not be in it.
    """
    if not _is_outside(task.type, cluster):
        cluster.address(task)
    return json.dumps(
        {
            "cluster": cluster.to_dict(),
            "task": {"type": task.type, "index": task.index},
        }
    )


def parse(text: str) -> tuple[Cluster, Task, list[str]]:
    """Reads a TF_CONFIG.

    A job or a task type "master" is taken as the chief. An evaluator's own TF_CONFIG
    may leave the evaluator out of the cluster.

    Returns:
        The cluster, this process's task, and sentences that the user should see.

    Raises:
        UsageError: no JSON, a part that is missing or malformed, or a task that the
            cluster does not have.
    """
    content = _read_json(text)
    jobs = _read_object(content, "cluster")
    task = _read_object(content, "task")
    if "type" not in task:
        raise errors.UsageError(f'TF_CONFIG has no "type" in its "task". {_EXAMPLE}')
    task_type = task["type"]
    notices = []
    if "master" in jobs or task_type == "master":
        jobs = _rename_master(jobs)
        # Without a chief the message about it should show what was given.
        if task_type == "master" and "chief" in jobs:
            task_type = "chief"
        notices.append(_MASTER_NOTICE)
    try:
        cluster = Cluster(jobs)
    except errors.UsageError as error:
        raise errors.UsageError(f"TF_CONFIG: {error}") from error
    return cluster, _find_task(cluster, task_type, task.get("index")), notices


def _read_json(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        start = " ".join(text.split())[:60]
        raise errors.UsageError(
            f"TF_CONFIG is not JSON ({error}); it starts with: {start} -- {_EXAMPLE}"
        ) from error
    if not isinstance(content, dict):
        raise errors.UsageError(
            f"TF_CONFIG is {quote(content)[:60]}, not an object. {_EXAMPLE}"
        )
    return content


def _read_object(content: dict[str, Any], key: str) -> dict[str, Any]:
    if key not in content:
        raise errors.UsageError(f'TF_CONFIG has no "{key}". {_EXAMPLE}')
    if not isinstance(content[key], dict) or not content[key]:
        raise errors.UsageError(
            f'TF_CONFIG has {quote(content[key])[:60]} as its "{key}", which should be '
            f"an object that is not empty. {_EXAMPLE}"
        )
    return content[key]


def _rename_master(jobs: dict[str, Any]) -> dict[str, Any]:
    if "master" in jobs and "chief" in jobs:
        raise errors.UsageError(
            'TF_CONFIG has a job "master" and a job "chief", two names for the same '
            'task. Keep "chief".'
        )
    return {"chief" if job == "master" else job: jobs[job] for job in jobs}


def _find_task(cluster: Cluster, task_type: Any, index: Any) -> Task:
    names = {"type_name": "TF_CONFIG task.type", "index_name": "TF_CONFIG task.index"}
    if _is_outside(task_type, cluster):
        return Task("evaluator", read_index(index, 1, "evaluator", names["index_name"]))
    return cluster.find_task(task_type, index, **names)


def _is_outside(task_type: Any, cluster: Cluster) -> bool:
    return task_type == "evaluator" and not cluster.addresses("evaluator")
