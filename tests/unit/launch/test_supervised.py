"""What is started again, when, and how often."""

import io
import signal

import pytest

from dtrain.console import Console
from dtrain.launch.child import STATUSES
from dtrain.launch.life import OVER, Life
from dtrain.launch.supervised import Supervised


class Process:
    """A child whose end the test decides."""

    def __init__(self, life):
        self.life = life
        self.process = self
        self.pid = 4711
        self.status = None
        self.is_over = False

    def poll(self):
        return self.status

    def end(self, status):
        self.is_over = status - OVER in STATUSES
        self.status = status - OVER if self.is_over else status

    def describe_cause(self):
        return f"ended with {self.status}"

    def stop(self, seconds):
        self.status = self.status if self.status is not None else -signal.SIGKILL


@pytest.fixture
def make(clock):
    def make(max_restarts=10):
        console = Console(io.StringIO())
        life = Life(run="abc")
        return Supervised("ps:0", Process, life, max_restarts, console, clock)

    return make


@pytest.mark.parametrize("status", [-signal.SIGKILL, -signal.SIGSEGV, 3, 1, 77])
def test_what_is_lost_is_started_again(make, clock, status):
    task = make()
    clock.advance(100)
    first = task.child
    first.end(status)
    task.look()
    assert task.is_pausing and not task.has_ended
    task.look()
    assert task.child is not first
    (record,) = task.restarts
    assert record["task"] == "ps:0"
    assert record["cause"] == f"ended with {status}"
    assert task.child.life.restarts == (record,)  # the new process knows


@pytest.mark.parametrize("status", [0, 2, 4, 129, 130, 143, OVER + 3, OVER + 143])
def test_what_has_ended_stays_so(make, clock, status):
    task = make()
    task.child.end(status)
    task.look()
    clock.advance(100)
    task.look()
    assert task.has_ended
    assert task.restarts == []


def test_what_dies_soon_waits_ever_longer(make, clock):
    task, pauses = make(), []
    for _ in range(9):
        before = clock()
        task.child.end(-9)
        task.look()
        while task.is_pausing:
            clock.advance(0.25)
            task.look()
        pauses.append(clock() - before)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    clock.advance(60)  # a long life makes up for it
    task.child.end(-9)
    task.look()
    task.look()
    assert not task.is_pausing


def test_after_so_many_restarts_it_is_over(make, clock):
    task = make(max_restarts=2)
    for _ in range(2):
        clock.advance(100)
        task.child.end(-9)
        task.look()
        task.look()
        assert not task.has_ended
    task.child.end(-9)
    task.look()
    assert task.has_ended
    assert len(task.restarts) == 2


def test_what_is_made_to_end_is_not_started_again(make):
    task = make()
    task.is_stopping = True
    task.child.end(-15)
    task.look()
    assert task.has_ended
