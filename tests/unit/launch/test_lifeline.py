"""No task outlives the process that started it."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from dtrain.launch import lifeline

CHILD = """
import os, signal
from dtrain.launch import lifeline
print(lifeline.hold(), os.getpid(), "DTRAIN_PARENT_PID" in os.environ, flush=True)
signal.pause()
"""

PARENT = """
import os, signal, subprocess, sys
from dtrain.launch import lifeline
environ = dict(os.environ)
lifeline.attach(environ)
child = subprocess.Popen(
    [sys.executable, "-c", sys.argv[1]], env=environ, start_new_session=True
)
signal.pause()
"""


def is_alive(process):
    try:
        # What nobody has waited for yet is dead as well.
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def family():
    """A parent, its child, and what the child says of itself."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True
    ) as parent:
        attached, pid, leaks = parent.stdout.readline().split()
        child = psutil.Process(int(pid))
        yield parent, child, (attached, leaks)
        for process in (child, parent):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue


def test_a_child_dies_with_a_parent_that_is_killed(family):
    parent, child, (attached, leaks) = family
    assert (attached, leaks) == ("True", "False")
    assert is_alive(child)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while is_alive(child):
        assert time.monotonic() < deadline, "the child lives on"
        time.sleep(0.01)


def test_a_child_whose_parent_is_gone_already_dies_at_once():
    environ = dict(os.environ)
    lifeline.attach(environ)
    environ = {name: "1" if v == str(os.getpid()) else v for name, v in environ.items()}
    child = subprocess.run(
        [sys.executable, "-c", CHILD], env=environ, capture_output=True, timeout=60
    )
    assert child.returncode == -signal.SIGKILL
    assert child.stdout == b""


def test_a_process_that_nobody_attached_lives_on_its_own():
    environ = {"OTHER": "x"}
    assert not lifeline.hold(environ)
    assert environ == {"OTHER": "x"}
