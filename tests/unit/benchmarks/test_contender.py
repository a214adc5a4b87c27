"""A contender's command: what it tells, and how it ends."""

import json
import os
import sys
import time

import psutil
import pytest

from benchmarks import contender

# A child, and a grandchild in a session of its own; $1 gets their process ids.
FAMILY = """
sleep 60 & echo $! >>"$1"
sh -c 'setsid sleep 60 & echo $! >>"$1"; wait' sh "$1" &
wait
"""
# One that outlives its parent.
ORPHAN = """
sleep 60 & echo $! >>"$1"
echo '{"value": 1.0}'
"""
ENVIRONMENT = """
import json, os
told = {name: value for name, value in os.environ.items()}
print(json.dumps({"value": 1.0, "environ": told, "cwd": os.getcwd()}))
"""


def python(source):
    return [sys.executable, "-c", source]


def shell(source, *args):
    return ["sh", "-c", source, "sh", *map(str, args)]


def message_of(command, **options):
    with pytest.raises(contender.Failed) as caught:
        contender.run(command, **options)
    return str(caught.value)


def is_alive(pid):
    try:
        # What nobody has waited for yet is dead as well.
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def pids(tmp_path):
    """A file for process ids, whose processes are ended with the test."""
    path = tmp_path / "pids"
    path.touch()
    yield path
    for pid in filter(is_alive, map(int, path.read_text().split())):
        os.kill(pid, 9)


def assert_all_end(pids, count):
    found = [int(pid) for pid in pids.read_text().split()]
    assert len(found) == count
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for pid in found):
        assert time.monotonic() < deadline, "one lives on"
        time.sleep(0.01)


# What it tells


def test_the_object_of_the_last_line_is_what_a_command_tells():
    source = 'print("{\\"value\\": 1.0}"); print("{\\"value\\": 2.0, \\"more\\": [3]}")'
    assert contender.run(python(source)) == {"value": 2.0, "more": [3]}


def test_a_command_may_tell_that_it_is_skipped():
    told = contender.run(shell("""echo '{"skipped": "no PyTorch"}'"""))
    assert told == {"skipped": "no PyTorch"}


def test_what_goes_to_the_other_stream_is_no_last_line():
    told = contender.run(shell("""echo '{"value": 1.0}'; echo "bye" >&2"""))
    assert told == {"value": 1.0}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"value": 1}', {"value": 1}),
        ('step 1\n{"value": 1}\n\n', {"value": 1}),
        ('{"skipped": "why"}', {"skipped": "why"}),
        ('{"value": 1}\nbye', None),
        ('{"seconds": 1}', None),
        ('["value"]', None),
        ("1.0", None),
        ('{"value": ', None),
        ("\n", None),
        ("", None),
    ],
)
def test_the_last_line_has_to_be_an_object_that_tells_something(text, told):
    assert contender.last_object(text) == told


# How it ends


def test_a_failure_shows_how_it_ended_and_what_it_wrote_last():
    source = """
import sys
for i in range(100):
    print("line", i)
sys.exit("no such data")
"""
    message = message_of(python(source))
    first, *rest = message.splitlines()
    assert first.startswith(sys.executable)
    assert "ended with status 1. It wrote last:" in message
    shown = rest[rest.index("  line 99") - 28 :]
    # Together thirty, and the last thing said is why.
    assert shown == [*(f"  line {i}" for i in range(71, 100)), "  no such data"]


def test_a_command_that_fails_tells_nothing_whatever_it_says():
    message = message_of(shell("""echo '{"value": 1.0}'; exit 3"""))
    assert "ended with status 3" in message
    assert message.endswith('  {"value": 1.0}')


def test_a_command_without_a_last_line_is_told_so():
    message = message_of(shell("echo 12.5 steps a second"))
    assert 'without a last line such as {"value": 1.0}' in message
    assert message.endswith("\n  12.5 steps a second")


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(pids):
    message = message_of(shell(f"echo begun; {FAMILY}", pids), timeout=0.8)
    assert "did not end within 0.8 seconds" in message
    assert message.endswith("\n  begun")
    assert_all_end(pids, 2)


def test_what_a_command_leaves_behind_is_ended_and_not_waited_for(pids):
    assert contender.run(shell(ORPHAN, pids), timeout=30) == {"value": 1.0}
    assert_all_end(pids, 1)


# What it gets


def test_a_command_finds_the_root_and_no_cluster_and_no_gpu(monkeypatch):
    names = ("TF_CONFIG", "PS_HOSTS", "WORKER_HOSTS", "JOB_NAME", "TASK_INDEX")
    for name in names:
        monkeypatch.setenv(name, json.dumps({}))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("PYTHONPATH", "/mine")
    told = contender.run(python(ENVIRONMENT))
    assert told["cwd"] == contender.ROOT
    environ = told["environ"]
    assert [name for name in names if name in environ] == []
    assert environ["CUDA_VISIBLE_DEVICES"] == "-1"
    assert environ["PYTHONPATH"].split(os.pathsep) == [contender.ROOT, "/mine"]


def test_the_root_alone_is_the_path_where_there_was_none(monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    told = contender.run(python(ENVIRONMENT))
    assert told["environ"]["PYTHONPATH"] == contender.ROOT


def test_interpreters_take_their_places():
    pythons = {"{python}": "/here/python", "{torch_python}": "/there/python"}
    assert contender.expand(("{python}", "-m", "{python}.x"), pythons) == [
        "/here/python",
        "-m",
        "{python}.x",
    ]
    assert contender.expand(["{torch_python}"], pythons) == ["/there/python"]


def test_a_program_that_is_not_there_is_named():
    with pytest.raises(contender.Failed, match=r"(?s)no/such/python.*cannot be run"):
        contender.run(["no/such/python", "-c", "1"])


@pytest.mark.parametrize("value", ["null", '"fast"', "NaN", "Infinity"])
def test_what_is_no_number_is_no_value(value):
    assert contender.last_object(f'{{"value": {value}}}') is None
