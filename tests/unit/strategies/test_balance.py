"""How asynchronous workers come to a stop: at the same time, in few calls."""

import heapq
from collections import deque

import pytest

from dtrain.strategies.balance import Balance


class Workers:
    """Workers that take calls from one queue, in a time of their own.

    Args:
        seconds: a step's, by worker.
    """

    def __init__(self, *seconds):
        self.time = 0.0
        self.balance = Balance(len(seconds), lambda: self.time)
        self._seconds = seconds
        self._idle = list(range(len(seconds)))
        self._queue = deque()
        self._ends = []  # (time, worker, call)

    def do(self, steps, most, lost=()):
        """Does so many steps; returns the calls' sizes and when each worker ended.

        Args:
            lost: numbers of calls of which nobody learns who did them.
        """
        sizes, ends = [], {}
        while steps or self._ends:
            while steps and len(self._ends) + len(self._queue) < 2 * len(self._seconds):
                sizes.append(self.balance.choose(steps, most))
                steps -= sizes[-1]
                self._queue.append((len(sizes), self.balance.add(sizes[-1])))
                self._take()
            self.time, worker, number, call = heapq.heappop(self._ends)
            ends[worker] = self.time
            known = None if number in lost else worker
            seconds = call.num_steps * self._seconds[worker]
            self.balance.end(call, known, call.num_steps, seconds)
            self._idle.append(worker)
            self._take()
        return sizes, ends

    def _take(self):
        while self._idle and self._queue:
            worker = self._idle.pop(0)
            number, call = self._queue.popleft()
            end = self.time + call.num_steps * self._seconds[worker]
            heapq.heappush(self._ends, (end, worker, number, call))


@pytest.mark.parametrize(
    ("steps", "most", "workers", "expected"),
    [
        (100, 90, 2, [50, 50]),
        (25, 10, 2, [10, 10, 3, 2]),
        (7, 10, 2, [4, 3]),
        (15, 10, 2, [10, 5]),
        (40, 9, 2, [9, 9, 9, 9, 2, 2]),
        (1, 100, 3, [1]),
        (300, 100, 3, [100, 100, 100]),
        (90, 100, 1, [90]),
        (250, 100, 1, [90, 80, 80]),
    ],
)
def test_equal_workers_get_equal_calls(steps, most, workers, expected):
    sizes, _ = Workers(*[0.01] * workers).do(steps, most)
    assert sizes == expected


@pytest.mark.parametrize("most", [10, 70, 100])
@pytest.mark.parametrize("seconds", [(0.01, 0.03), (0.01, 0.012, 0.05), (0.02,)])
def test_unequal_workers_stop_together(seconds, most):
    workers = Workers(*seconds)
    workers.do(50 * most * len(seconds), most)  # now it is known how fast they are
    for _ in range(5):
        started = workers.time
        sizes, ends = workers.do(1000, most)
        assert sum(sizes) == 1000
        assert max(sizes) <= most
        assert len(ends) == len(seconds)
        # Well enough for parts of ten steps, of the slowest.
        assert max(ends.values()) - min(ends.values()) <= 20 * max(seconds)
        speed = sum(1 / each for each in seconds)
        assert workers.time - started <= 1000 / speed + 10 * max(seconds)


def test_slow_steps_are_not_rounded_up_to_what_is_written_out():
    workers = Workers(*[0.05] * 8)
    workers.do(800, 10)  # now it is known how slow they are
    started = workers.time
    _, ends = workers.do(1000, 10)
    assert max(ends.values()) - min(ends.values()) <= 1.01 * 0.05
    assert workers.time - started <= 1.01 * 125 * 0.05


def test_few_calls_are_made():
    sizes, _ = Workers(0.01, 0.01).do(1000, 100)
    assert len(sizes) <= 12
    sizes, _ = Workers(0.01, 0.01).do(1000, 10)
    assert set(sizes) == {10}  # what is not written out runs slower


def test_what_a_lost_worker_did_does_not_confuse():
    workers = Workers(0.01, 0.02)
    for lost in ((), (3, 4), (1,)):
        sizes, ends = workers.do(1000, 100, lost)
        assert sum(sizes) == 1000
    assert max(ends.values()) - min(ends.values()) <= 20 * 0.02


def test_calls_may_be_told_of_out_of_order():
    balance = Balance(1, lambda: 0.0)
    first, second, third = (balance.add(10) for _ in range(3))
    for call in (second, first, third):
        balance.end(call, 0, 10, 0.1)
    assert balance.choose(30, 100) == 30


def test_a_worker_without_data_is_no_infinitely_slow_one():
    balance = Balance(2, lambda: 0.0)
    balance.end(balance.add(10), 0, 0, 0.1)
    assert balance.choose(100, 100) == 50


def test_a_chief_that_was_busy_takes_nobody_for_infinitely_fast():
    now = 0.0
    balance = Balance(2, lambda: now)
    calls = [balance.add(10) for _ in range(4)]
    for call, worker, time in zip(calls, (0, 1, 0, 1), (1, 5, 5, 5), strict=True):
        now = max(now + 1e-5, time)  # while it did something else, the others ended
        balance.end(call, worker, 10, 1.0)
    assert balance.choose(90, 100) == 45


def test_who_is_idle_is_as_fast_as_it_was():
    workers = Workers(0.01, 0.01)
    workers.do(200, 100)
    workers.balance.add(100)
    assert workers.balance.choose(100, 100) == 100  # while the other does its own


def test_no_end_in_sight():
    sizes = [Balance(3, lambda: 0.0).choose(2**63 - 1, most) for most in (1, 10, 100)]
    assert sizes == [1, 10, 100]
