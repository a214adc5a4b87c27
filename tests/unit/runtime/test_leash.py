"""When a task has to take its chief for lost."""

import pytest

from dtrain.runtime.leash import Leash


class Box:
    def __init__(self):
        self.messages = []
        self.shown = {}

    def receive(self, seconds):
        messages, self.messages = self.messages, []
        return messages

    def show(self, **changes):
        self.shown.update(changes)


def beat(boot="a", timeout=30.0):
    return {"do": "beat", "chief": {"boot": boot, "run": "r", "timeout": timeout}}


@pytest.fixture
def box():
    return Box()


def test_a_task_without_a_chief_is_alone_but_not_torn_off(box, clock):
    leash = Leash(box, alone=20.0, now=clock)
    clock.advance(100)
    assert leash.silence == 120
    assert not leash.is_torn()


def test_who_is_given_up_knows_it_before_the_chief_does(box, clock):
    leash = Leash(box, now=clock)
    box.messages = [beat()]
    assert leash.listen(0) == []
    clock.advance(26.9)
    assert not leash.is_torn()
    clock.advance(0.2)
    assert leash.is_torn()
    box.messages = [beat()]
    leash.listen(0)
    assert not leash.is_torn()


def test_what_is_heard_is_shown_and_other_messages_come_through(box, clock):
    leash = Leash(box, now=clock)
    box.messages = [beat(), {"do": "leave", "status": 0}, beat()]
    assert leash.listen(0) == [{"do": "leave", "status": 0}]
    assert box.shown["chief"]["boot"] == "a"
    assert box.shown["beats"] == 2


def test_another_chief_s_heartbeat_does_not_count(box, clock):
    leash = Leash(box, now=clock)
    box.messages = [beat("a")]
    leash.listen(0)
    clock.advance(28)
    box.messages = [beat("b")]
    leash.listen(0)
    assert leash.chief["boot"] == "a"
    assert leash.is_torn()
