"""How many steps each packed call of asynchronous workers holds.

Workers take calls from one queue as they become free, and all wait for the last one
wherever training comes to a stop: for a checkpoint, an evaluation, the end. So the
calls up to a stop are sized by when each worker will be free and by how fast it is.
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable

from dtrain.strategies import packing

# Steps per second of a worker, below which ten more take longer than 0.2 s.
_QUICK = 50


class Call:
    """A packed call that is under way.

    Attributes:
        num_steps: that it was asked for.
    """

    def __init__(self, num_steps: int):
        self.num_steps = num_steps
        self.started = 0.0
        self.worker: int | None = None  # not known of the first ones


class Balance:
    """Deals out steps so that all workers come to a stop at about the same time.

    Args:
        num_workers: how many take calls.
        now: the clock, in seconds.
    """

    def __init__(self, num_workers: int, now: Callable[[], float] = time.monotonic):
        self._num_workers = num_workers
        self._now = now
        self._speeds: dict[int, float] = {}  # steps per second, by worker
        self._running: list[Call] = []
        self._waiting: deque[Call] = deque()

    def choose(self, remaining: int, most: int) -> int:
        """Returns the steps of the next call.

        Args:
            remaining: steps to deal out up to the next stop.
            most: that are worth a call.
        """
        free = self._when_free()
        share = _share_of_first(free, remaining)
        calls = max(1, math.ceil(share / most))
        part = math.ceil(share / calls - 1e-6)
        # What is not written out runs slower. But of slow steps, those that are too
        # many are waited for at the stop.
        is_quick = not self._speeds or free[0][1] > _QUICK
        if part > packing.UNROLL / 2 and is_quick:
            part = math.ceil(part / packing.UNROLL) * packing.UNROLL
        return min(max(part, 1), most, remaining)

    def add(self, num_steps: int) -> Call:
        """Takes in a call that has been put into the queue."""
        call = Call(num_steps)
        if len(self._running) < self._num_workers:
            self._start(call, None)
        else:
            self._waiting.append(call)
        return call

    def end(
        self, call: Call, worker: int | None, updates: int = 0, seconds: float = 0.0
    ) -> None:
        """Takes in that a call is done.

        Args:
            worker: who did it; `None` if that was lost with it.
            updates: that it made.
            seconds: that it took, by the worker's clock: when it is told of here says
                little of that, if the chief was busy meanwhile.
        """
        if worker is not None and updates and seconds > 0:
            speed = updates / seconds
            self._speeds[worker] = (self._speeds.get(worker, speed) + speed) / 2
        if call not in self._running:  # it began unseen
            self._waiting.remove(call)
            return
        self._running.remove(call)
        if self._waiting:
            self._start(self._waiting.popleft(), worker)

    def _start(self, call: Call, worker: int | None) -> None:
        call.started, call.worker = self._now(), worker
        self._running.append(call)

    def _speed(self, worker: int) -> float:
        if worker in self._speeds:
            return self._speeds[worker]
        return statistics.mean(self._speeds.values()) if self._speeds else 1.0

    def _when_free(self) -> list[tuple[float, float]]:
        """Returns, sorted, when each will have done what it has, and its speed."""
        now = self._now()
        known = {call.worker for call in self._running} - {None}
        # Of those of whom nobody knows what they do.
        others = [i for i in range(self._num_workers) if i not in known]
        other = statistics.mean(map(self._speed, others)) if others else 1.0
        free = []
        for call in self._running:
            speed = other if call.worker is None else self._speed(call.worker)
            free.append((max(now, call.started + call.num_steps / speed), speed))
        free += [(now, other)] * (self._num_workers - len(free))
        for call in self._waiting:
            first, speed = min(free)
            free.remove((first, speed))
            free.append((first + call.num_steps / speed, speed))
        return sorted(free)


def _share_of_first(free: list[tuple[float, float]], steps: int) -> float:
    """Returns what the first to be free does of so many steps, if all end together.

    Args:
        free: when each is free, and its speed; sorted.
        steps: to share.
    """
    start, speed = free[0]
    end, total, begun = math.inf, 0.0, 0.0
    for time_free, own in free:
        if end <= time_free:  # all is done before
            break
        total += own
        begun += own * (time_free - start)
        end = start + (steps + begun) / total
    return speed * (end - start)
