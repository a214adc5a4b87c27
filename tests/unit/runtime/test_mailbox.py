"""A task's mailbox, used through the paths that other processes use."""

import json
import os
import subprocess
import sys

from dtrain.runtime import mailbox
from dtrain.runtime.mailbox import Mailbox


def say(**message):
    with open(mailbox.MESSAGES_PATH, "w") as pipe:
        pipe.write(json.dumps(message) + "\n")


def shown():
    with open(mailbox.IDENTITY_PATH) as file:
        return json.load(file)


def test_messages_come_through_whole_and_in_order():
    box = Mailbox(task="ps:0")
    assert box.receive(0.0) == []
    say(do="beat", n=1)
    say(do="leave", status=3)
    assert box.receive(1.0) == [{"do": "beat", "n": 1}, {"do": "leave", "status": 3}]
    with open(mailbox.MESSAGES_PATH, "w") as pipe:  # in two parts
        pipe.write('{"do": ')
        pipe.flush()
        assert box.receive(1.0) == []
        pipe.write('"again"}\n')
    assert box.receive(1.0) == [{"do": "again"}]


def test_what_is_shown_says_who_it_is_and_changes_at_once():
    box = Mailbox(task="ps:0", beats=0)
    first = shown()
    assert first["task"] == "ps:0"
    assert first["pid"] == os.getpid()
    box.show(beats=7)
    assert shown() == {**first, "beats": 7}
    assert Mailbox(task="ps:0")._identity["boot"] != first["boot"]


def test_children_do_not_inherit_it():
    Mailbox(task="ps:0")
    script = f"import os; print(os.path.exists({mailbox.MESSAGES_PATH!r}))"
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, close_fds=False
    )
    assert answer.stdout == b"False\n"
