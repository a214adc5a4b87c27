"""Who is missing, and when there is nobody left to wait for."""

import contextlib
import io
import socket

import pytest

from dtrain import errors
from dtrain.cluster.spec import Cluster, Task
from dtrain.console import Console
from dtrain.runtime import preflight


@contextlib.contextmanager
def listening(count):
    """Listens on ports of this machine; gives their addresses."""
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(count)
        ]
        yield [f"127.0.0.1:{sock.getsockname()[1]}" for sock in sockets]


@pytest.fixture
def nobody():
    """An address that nobody listens on, held so that nobody will."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{sock.getsockname()[1]}"


def missing_ps():
    return [Task("ps", 0)]


def test_the_wait_ends_when_nobody_is_missing():
    cluster = Cluster({"worker": ["w:1"], "ps": ["ps:1"]})
    preflight.wait_for(lambda: [], cluster, 1.0, Console(io.StringIO()))


def test_who_is_missing_is_said_now_and_then_and_at_the_end(clock):
    def now():
        clock.advance(4)
        return clock()

    terminal = io.StringIO()
    cluster = Cluster({"worker": ["w:1"], "ps": ["ps:1"]})
    with pytest.raises(errors.GivenUp) as caught:
        preflight.wait_for(missing_ps, cluster, 60, Console(terminal), now=now)
    assert "No answer from ps:0 (ps:1) within --startup_timeout=60 s" in str(
        caught.value
    )
    lines = terminal.getvalue().splitlines()
    assert set(lines) == {"Waiting for ps:0 (ps:1)."}
    assert 1 < len(lines) < 7


def test_what_goes_wrong_meanwhile_ends_the_wait():
    def check():
        raise errors.TaskUnavailable("the server beside is gone")

    cluster = Cluster({"worker": ["w:1"], "ps": ["ps:1"]})
    with pytest.raises(errors.TaskUnavailable, match="the server beside is gone"):
        preflight.wait_for(missing_ps, cluster, 60, Console(io.StringIO()), check)


def test_one_worker_is_enough_to_hope(nobody, clock):
    with listening(1) as (worker,):
        cluster = Cluster({"worker": [nobody, worker], "ps": ["ps:1"]})
        lookout = preflight.Lookout(cluster, 10, lambda: True, now=clock)
        for _ in range(5):
            lookout.check()
            clock.advance(100)


def test_without_any_worker_the_wait_ends_after_the_timeout(nobody, clock):
    cluster = Cluster({"worker": [nobody], "ps": ["ps:1"]})
    lookout = preflight.Lookout(cluster, 10, lambda: False, now=clock)
    lookout.check()
    clock.advance(9)
    lookout.check()
    clock.advance(2)
    with pytest.raises(errors.TaskUnavailable, match=nobody):
        lookout.check()


def test_who_is_waited_for_has_to_answer_though_others_do(nobody, clock):
    with socket.create_server(("localhost", 0)) as server:
        somebody = f"localhost:{server.getsockname()[1]}"
        cluster = Cluster({"worker": [somebody, nobody], "ps": ["ps:1"]})
        lookout = preflight.Lookout(cluster, 10, lambda: True, now=clock)
        lookout.check()
        lookout.check([0])
        with pytest.raises(errors.TaskUnavailable, match="no answer any more") as error:
            lookout.check([1])
    assert nobody in str(error.value)
    assert somebody not in str(error.value)


def test_without_any_worker_a_run_that_has_to_stop_does_not_wait(nobody, clock):
    cluster = Cluster({"worker": [nobody], "ps": ["ps:1"]})
    lookout = preflight.Lookout(cluster, 10, lambda: True, now=clock)
    with pytest.raises(errors.TaskUnavailable, match="No worker answers any more"):
        lookout.check()


def test_who_refuses_twice_in_a_row_is_gone(nobody):
    with listening(1) as (somebody,):
        refusals = preflight.Refusals([somebody, nobody])
        assert [refusals.look() for _ in range(6)] == [False] * 3 + [True, False, True]
    assert not preflight.Refusals([]).look()


def test_who_listens_again_is_not_gone():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        refusals = preflight.Refusals([f"127.0.0.1:{sock.getsockname()[1]}"])
        assert not refusals.look()
        sock.listen()
        assert not refusals.look()
