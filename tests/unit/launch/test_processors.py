"""How many processors a task computes with."""

import os

import pytest

from dtrain.cluster.spec import Task
from dtrain.launch import processors

NAME = "TF_NUM_INTRAOP_THREADS"


@pytest.mark.parametrize(
    ("found", "num_workers", "expected"),
    [(2, 2, "1"), (16, 2, "8"), (16, 5, "3"), (2, 8, "1"), (4, 1, "4")],
)
@pytest.mark.parametrize("task", [Task("worker", 0), Task("ps", 1)], ids=str)
def test_workers_share_the_processors(task, found, num_workers, expected):
    assert processors.threads(task, num_workers, {}, found) == {NAME: expected}


@pytest.mark.parametrize("task", [Task("chief"), Task("evaluator")], ids=str)
def test_who_evaluates_has_all_of_them(task):
    assert processors.threads(task, 2, {}, 2) == {}


def test_what_the_user_says_stays():
    assert processors.threads(Task("worker", 0), 2, {NAME: "2"}, 16) == {}


def test_processors_that_this_process_may_not_use_do_not_count():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, [min(before)])
        assert processors.threads(Task("worker", 0), 1, {}) == {NAME: "1"}
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("said", "expected"),
    [({NAME: "1"}, True), ({NAME: "2"}, False), ({NAME: "0"}, False), ({}, False)],
)
def test_processors_that_a_task_leaves_are_for_others(said, expected):
    assert processors.are_shared(said, 2) is expected
