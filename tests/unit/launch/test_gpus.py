"""Which GPUs a task sees."""

import pytest

from dtrain import errors
from dtrain.cluster.spec import Task
from dtrain.launch import gpus


def visible(task, environ=None, found=None):
    return gpus.visible_to(task, environ or {}, found)


def workers(count, environ=None, found=None):
    return [visible(Task("worker", i), environ, found) for i in range(count)]


def test_each_worker_gets_a_gpu_of_its_own():
    assert workers(3, found=["0", "1", "2"]) == ["0", "1", "2"]


def test_workers_share_in_turn_if_there_are_too_few():
    assert workers(5, found=["0", "1"]) == ["0", "1", "0", "1", "0"]


def test_without_gpus_nobody_sees_one():
    assert workers(2, found=[]) == ["-1", "-1"]


@pytest.mark.parametrize("task", [Task("ps", 0), Task("ps", 1), Task("chief")], ids=str)
def test_who_does_not_compute_sees_none(task):
    assert visible(task, found=["0", "1"]) == "-1"
    assert visible(task, {"CUDA_VISIBLE_DEVICES": "0,1"}) == "-1"


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("2,5", ["2", "5", "2"]),
        ("5, 2", ["5", "2", "5"]),
        ("GPU-8d2f,MIG-41ab", ["GPU-8d2f", "MIG-41ab", "GPU-8d2f"]),
        ("", ["-1", "-1", "-1"]),
        ("-1", ["-1", "-1", "-1"]),
        ("0,-1,1", ["0", "0", "0"]),  # CUDA stops at the first invalid one
        ("0,,1", ["0", "0", "0"]),
    ],
)
def test_the_users_choice_among_the_gpus_is_kept(chosen, expected):
    assert workers(3, {"CUDA_VISIBLE_DEVICES": chosen}) == expected
    assert gpus.find({"CUDA_VISIBLE_DEVICES": chosen}) == [
        name for name in dict.fromkeys(expected) if name != "-1"
    ]


# Tasks that need GPUs of their own.


def shares(sharing, count=None, found=(), environ=None):
    found = None if environ else list(found)
    return [
        gpus.share(rank, sharing, count, environ or {}, found)
        for rank in range(sharing)
    ]


@pytest.mark.parametrize(
    ("sharing", "count", "expected"),
    [
        (1, None, ["a,b,c,d"]),
        (2, None, ["a,b", "c,d"]),
        (3, None, ["a", "b", "c"]),
        (4, None, ["a", "b", "c", "d"]),
        (2, 1, ["a", "b"]),
        (1, 3, ["a,b,c"]),
        (2, 2, ["a,b", "c,d"]),
    ],
)
def test_tasks_on_a_machine_divide_its_gpus(sharing, count, expected):
    assert shares(sharing, count, "abcd") == expected


@pytest.mark.parametrize(("sharing", "count"), [(1, None), (3, None), (2, 4)])
def test_without_gpus_tasks_share_nothing(sharing, count):
    assert shares(sharing, count) == ["-1"] * sharing
    hidden = {"CUDA_VISIBLE_DEVICES": "-1"}
    assert shares(sharing, count, environ=hidden) == ["-1"] * sharing


def test_tasks_divide_the_gpus_that_the_user_shows(monkeypatch):
    monkeypatch.setattr(gpus, "_list_devices", lambda: ["any"])
    shown = {"CUDA_VISIBLE_DEVICES": "5,GPU-8d2f,2,7"}
    assert shares(2, environ=shown) == ["5,GPU-8d2f", "2,7"]


@pytest.mark.parametrize(
    ("sharing", "count", "parts"),
    [
        (5, None, ["5 tasks with 1 GPU each need 5", "has 4: a,b,c,d"]),
        (2, 3, ["2 tasks with 3 GPUs each need 6", "has 4: a,b,c,d"]),
        (1, 5, ["with 5 GPUs each need 5"]),
    ],
)
def test_too_few_gpus_are_refused(sharing, count, parts):
    with pytest.raises(errors.UsageError) as caught:
        shares(sharing, count, "abcd")
    message = str(caught.value)
    assert not [part for part in parts if part not in message], message
    assert "CUDA_VISIBLE_DEVICES=-1" in message
