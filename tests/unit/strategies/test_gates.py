"""A worker that is to leave gets no further closure, and loses none."""

import queue
import threading
import types

import pytest

from dtrain.strategies.gates import Gates


class Worker:
    def __init__(self):
        self.done = []
        self.started, self.may_end = threading.Event(), threading.Event()

    def _process_closure(self, closure):
        self.started.set()
        assert self.may_end.wait(10)
        self.done.append(closure)


@pytest.fixture
def worker():
    return Worker()


@pytest.fixture
def back():
    return queue.Queue()


@pytest.fixture
def gates(worker, back):
    cluster = types.SimpleNamespace(
        workers=[worker], closure_queue=types.SimpleNamespace(put_back=back.put)
    )
    return Gates(types.SimpleNamespace(_cluster=cluster))


def start(function, *args):
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


def test_what_runs_ends_and_the_next_goes_to_another(gates, worker, back):
    running = start(worker._process_closure, "first")
    assert worker.started.wait(10)
    assert not gates.close(0)  # it runs one
    worker.may_end.set()
    running.join(10)
    assert gates.close(0)
    waiting = start(worker._process_closure, "second")
    assert back.get(timeout=10) == "second"
    assert worker.done == ["first"]
    assert waiting.is_alive()  # it asks for no third one
    gates.open(0)
    waiting.join(10)
    worker._process_closure("third")
    assert worker.done == ["first", "third"]


def test_an_open_gate_lets_all_through(gates, worker):
    worker.may_end.set()
    for closure in range(3):
        worker._process_closure(closure)
    assert worker.done == [0, 1, 2]
    assert gates.close(0)
