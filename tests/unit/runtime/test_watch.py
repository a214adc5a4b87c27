"""Whom a chief takes for one of its tasks, and whom for lost."""

import io

import pytest
import tensorflow as tf

from dtrain import errors, version
from dtrain.cluster.spec import Cluster, Task
from dtrain.console import Console
from dtrain.launch.life import Life
from dtrain.runtime import contact, post, watch
from dtrain.runtime.watch import Watch

CLUSTER = Cluster({"chief": ["c:1"], "worker": ["w0:1", "w1:1"], "ps": ["p:1"]})


class Server:
    """What answers in a task's place."""

    def __init__(self, cluster, task):
        self.said = []
        self.problem, self.is_silent = None, False
        self.shown = {
            "boot": "first",
            "pid": 4711,
            "host": "there",
            **post.identity(cluster, task, "ps", Life()),
        }

    def exchange(self, message, seconds):
        if self.problem is not None:
            raise contact.Unreachable(self.problem, self.is_silent)
        if message is not None:
            self.said.append(message["do"])
            if message["do"] == "beat" and self.shown["chief"] is None:
                self.shown["chief"] = message["chief"]
        return dict(self.shown)


@pytest.fixture
def servers(monkeypatch):
    """Servers by address; a connection to one is the server itself."""
    servers = {CLUSTER.address(t): Server(CLUSTER, t) for t in CLUSTER.servers()}
    monkeypatch.setattr(post.contact, "Contact", servers.__getitem__)
    return servers


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(watch.time, "sleep", lambda seconds: None)


@pytest.fixture
def make(servers, clock):
    def make(run="mine"):
        life = Life(run=run)
        return Watch(CLUSTER, CLUSTER.servers(), "ps", life, 30.0, clock)

    return make


def look(watch):
    for one in watch._posts:
        one._look()


def problem(watch, task):
    return next(p.row() for p in watch._posts if p.task == task)


def test_the_right_tasks_are_taken_and_hear_the_chief(make, servers):
    own = make()
    look(own)
    assert all(post.is_ready for post in own._posts)
    assert all(server.said == ["beat"] for server in servers.values())
    look(own)
    assert all(server.said == ["beat", "beat"] for server in servers.values())
    assert own.wait(1.0, Console(io.StringIO()), lambda: None) == []
    own.check()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtrain": "9.9"}, f"runs dtrain 9.9, the chief runs {version.__version__}"),
        ({"tensorflow": "1.15"}, f"TensorFlow 1.15, the chief runs {tf.__version__}"),
        ({"task": "worker:0"}, "was started as worker:0: its index or job is wrong"),
        ({"strategy": "in_graph"}, "was started with --strategy=in_graph, the chief"),
        ({"cluster": {"ps": ["p:1"]}}, "another cluster: as process 4711 on there"),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else "",
)
def test_who_does_not_fit_is_named_with_the_reason(make, servers, change, words):
    servers["w1:1"].shown.update(change)
    own = make()
    look(own)
    with pytest.raises(errors.GivenUp) as caught:
        own.wait(0.0, Console(io.StringIO()), lambda: None)
    text = str(caught.value)
    assert "1 of 3 tasks are not ready within --startup_timeout=0 s" in text
    (row,) = [line for line in text.splitlines() if "worker:1 " in line]
    assert words in row
    assert servers["w1:1"].said == []  # it is not ours to drive


def test_who_is_not_there_is_named_until_it_comes(make, servers):
    servers["p:1"].problem = "does not listen there"
    own = make()
    look(own)
    assert "does not listen there" in problem(own, Task("ps", 0))
    servers["p:1"].problem = None
    look(own)
    assert "is ready" in problem(own, Task("ps", 0))


def test_a_task_of_this_run_s_lost_chief_starts_again(make, servers, clock):
    look(make())
    own = make()  # the next life: the same run, another process
    look(own)
    assert servers["p:1"].said == ["beat", "again"]
    assert not any(post.is_ready for post in own._posts)
    servers["p:1"].shown.update(chief=None, boot="second")
    look(own)
    assert "is ready" in problem(own, Task("ps", 0))


def test_a_task_of_another_run_is_left_alone_as_long_as_its_chief_lives(
    make, servers, clock
):
    look(make("other"))
    own = make()
    for beats in range(1, 5):
        look(own)
        clock.advance(3)
        servers["p:1"].shown["beats"] = beats
    assert servers["p:1"].said == ["beat"]
    assert "obeys another chief" in problem(own, Task("ps", 0))
    look(own)
    clock.advance(5)  # its heart does not beat any more
    look(own)
    assert servers["p:1"].said == ["beat", "again"]


def test_a_silent_worker_can_be_done_without(make, servers, clock):
    own = make()
    look(own)
    servers["w1:1"].problem = "does not answer"
    for _ in range(10):
        look(own)
        own.check()
        clock.advance(3.0)
    clock.advance(0.1)
    with pytest.raises(
        errors.TasksLost, match=r"worker:1 \(w1:1\) is silent"
    ) as caught:
        own.check()
    assert caught.value.tasks == (Task("worker", 1),)


def test_with_a_silent_ps_its_part_of_the_model_is_gone(make, servers, clock):
    own = make()
    look(own)
    servers["p:1"].problem = servers["w1:1"].problem = "does not answer"
    clock.advance(31)
    look(own)
    with pytest.raises(errors.TaskUnavailable, match="ps:0") as caught:
        own.check()
    assert not isinstance(caught.value, errors.TasksLost)


def test_a_ps_that_was_started_again_holds_nothing(make, servers):
    own = make()
    look(own)
    servers["p:1"].shown["boot"] = servers["w1:1"].shown["boot"] = "second"
    look(own)
    with pytest.raises(errors.TaskUnavailable, match="ps:0 was started again"):
        own.check()


def test_a_worker_that_was_given_up_is_not_waited_for_again(make, servers, clock):
    servers["w1:1"].problem = "does not answer"
    servers["w1:1"].is_silent = True
    own, lost = make(), Task("worker", 1)
    look(own)
    console = Console(io.StringIO())
    with pytest.raises(errors.GivenUp):
        own.wait(0.0, console, lambda: None)
    assert own.wait(0.0, console, lambda: None, [lost]) == [lost]
    # It comes after all, hears that there is a chief, and is nobody's loss any more.
    servers["w1:1"].problem = None
    look(own)
    assert servers["w1:1"].said == ["beat"]
    servers["w1:1"].shown["is_leaving"] = True
    look(own)
    assert own.leaving() == []
    servers["w1:1"].problem = "does not answer"
    clock.advance(29)
    for server in ("w0:1", "p:1"):
        assert servers[server].said
    look(own)
    clock.advance(2)
    own.check()


def test_in_a_later_life_a_machine_that_is_off_is_not_waited_for_long(
    make, servers, clock
):
    servers["w1:1"].problem = "does not answer"
    servers["w1:1"].is_silent = True
    own = make()
    look(own)

    def later():
        look(own)
        clock.advance(1.0)

    started, console = clock(), Console(io.StringIO())
    assert own.wait(99, console, later, is_later=True) == [Task("worker", 1)]
    assert 30 <= clock() - started < 33
    servers["w1:1"].is_silent = False  # its process is missing, but it may come
    own = make()
    with pytest.raises(errors.GivenUp):
        own.wait(99, console, later, is_later=True)


def test_only_this_run_s_tasks_are_told_to_leave(make, servers):
    look(make("other"))
    servers["w0:1"].shown["chief"] = None
    servers["w1:1"].problem = "does not answer"
    own = make()
    assert own.part(3, patience=0.0) == [Task("worker", 1), Task("ps", 0)]
    assert servers["w0:1"].said == ["beat", "leave"]
    assert servers["p:1"].said == ["beat"]


def test_a_worker_that_was_told_to_leave_is_not_lost_but_may_come_back(
    make, servers, clock
):
    own, worker = make(), Task("worker", 1)
    look(own)
    servers["w1:1"].shown["is_leaving"] = True
    look(own)
    assert own.leaving() == [worker]
    assert own.tell(worker, 143)
    servers["w1:1"].problem = "does not listen there"
    clock.advance(100)
    servers["w1:1"].problem, problem = None, servers["w1:1"].problem
    look(own)
    servers["w1:1"].problem = problem
    for one in own._posts:
        one._heard = clock() if one.task != worker else one._heard
    clock.advance(29)
    own.check()
    servers["w1:1"].problem = None
    servers["w1:1"].shown.update(chief=None, boot="second", is_leaving=False)
    look(own)
    assert own.boot(worker) == "second"
    assert own.leaving() == []
    clock.advance(31)
    with pytest.raises(errors.TaskUnavailable, match="worker:1"):
        own.check()


def test_a_task_that_leaves_before_training_is_missing_until_another_comes(
    make, servers
):
    own, console = make(), Console(io.StringIO())
    look(own)
    servers["w1:1"].shown["is_leaving"] = True
    look(own)
    with pytest.raises(errors.GivenUp):
        own.wait(0.0, console, lambda: None)
    assert servers["w1:1"].said[-1] == "leave"
    servers["w1:1"].shown.update(chief=None, boot="second", is_leaving=False)
    look(own)
    assert own.wait(0.0, console, lambda: None) == []
