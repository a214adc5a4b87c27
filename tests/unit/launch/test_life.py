"""What one life of a task tells the next."""

import subprocess
import sys

import pytest

from dtrain import errors
from dtrain.cluster.spec import Task
from dtrain.launch import life
from dtrain.launch.life import Life

LOST = errors.TaskUnavailable("ps:0 is lost.")


def test_a_life_survives_the_way_through_the_environment():
    known = Life(
        run="abc",
        supervisor="command",
        restarts=(life.restart("ps:0", "was killed by SIGKILL", 1.5),),
        again=2,
        step=300,
        without=("worker:1",),
        alone=4.0,
    )
    environ = {"OTHER": "x"}
    known.leave(environ)
    assert Life.read(environ) == known
    assert environ == {"OTHER": "x"}  # children are not to take it for theirs


def test_a_first_life_has_a_run_of_its_own():
    assert Life.read({}).run != Life.read({}).run
    assert not Life.read({}).is_child
    assert Life.read({}).of("launcher").is_child


def test_lives_without_a_newer_checkpoint_are_bounded():
    own = Life(run="abc").next(100, 2, LOST)
    own = own.next(100, 2, LOST)
    with pytest.raises(errors.GivenUp, match="--max_restarts=2 allows no more"):
        own.next(100, 2, LOST)
    assert own.next(101, 2, LOST).again == 1  # it has come further


def test_without_restarts_the_first_loss_is_the_end():
    with pytest.raises(errors.GivenUp):
        Life(run="abc").next(100, 0, LOST)


def test_workers_that_were_given_up_stay_known():
    worker = Task("worker", 1)
    own = Life(run="abc").next(1, 9, errors.TasksLost("It is silent.", [worker]))
    assert own.knows_as_lost(worker)
    assert not own.knows_as_lost(Task("worker", 0))
    assert own.next(2, 9, LOST, [worker]).knows_as_lost(worker)
    # One that was taken in again is like any other.
    assert not own.next(2, 9, LOST).knows_as_lost(worker)


# As a thread of TensorFlow's does that cannot start another one.
ABORTED = """
import ctypes, os, sys, time
from dtrain.launch import life

life.outlive_threads()
libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
libc.pthread_create(ctypes.byref(thread), None, libc.abort, None)
time.sleep(0.3)
os.execv(sys.executable, [sys.executable, "-c", "print('the next life')"])
"""


def test_a_thread_that_aborts_does_not_keep_the_next_life_from_coming():
    command = [sys.executable, "-c", ABORTED]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (result.returncode, result.stdout) == (0, "the next life\n")
