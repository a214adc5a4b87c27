"""Which GPUs a task sees."""

import pytest

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
