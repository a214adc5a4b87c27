"""The model directory: its name, where logs go, and that one run owns it."""

import datetime
import os
import re
import subprocess
import sys

import pytest

from dtrain import errors
from dtrain.cluster.spec import Task
from dtrain.launch import model_dir

HOLD = """
import sys
from dtrain.launch import model_dir
owner = model_dir.Owner(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other_run():
    """A function that starts another process that owns a directory."""
    started = []

    def start(path):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("experiment", "name"),
    [
        ("digits_mlp", "digits_mlp-20260201-030405"),
        ("a.b:train", "a.b.train-20260201-030405"),
        ("a/b", "a.b-20260201-030405"),
    ],
)
def test_a_run_without_a_directory_gets_one_by_name_and_time(experiment, name):
    now = datetime.datetime(2026, 2, 1, 3, 4, 5)
    assert model_dir.default(experiment, now) == os.path.join("runs", name)


def test_the_time_is_now_if_not_given():
    before = f"{datetime.datetime.now():%Y%m%d-%H%M%S}"
    path = model_dir.default("x")
    after = f"{datetime.datetime.now():%Y%m%d-%H%M%S}"
    assert before <= re.fullmatch(r"runs/x-(\d{8}-\d{6})", path)[1] <= after


def test_every_task_has_a_log_of_its_own():
    assert model_dir.log_path("/run", Task("ps", 1)) == "/run/logs/ps-1.log"


def test_the_directory_is_made(tmp_path):
    path = tmp_path / "runs" / "new"
    model_dir.Owner(str(path)).release()
    assert path.is_dir()


def test_a_directory_in_use_is_refused_with_the_owners_pid(tmp_path, other_run):
    process = other_run(tmp_path)
    with pytest.raises(errors.UsageError) as caught:
        model_dir.Owner(str(tmp_path))
    message = str(caught.value)
    assert f"--model_dir={tmp_path}" in message
    assert f"process {process.pid} on " in message
    # To be refused does not take it away from its owner.
    with pytest.raises(errors.UsageError, match=f"process {process.pid} on "):
        model_dir.Owner(str(tmp_path))


def test_a_dead_runs_directory_is_taken_over(tmp_path, other_run):
    process = other_run(tmp_path)
    process.kill()
    process.wait()
    owner = model_dir.Owner(str(tmp_path))
    with pytest.raises(errors.UsageError, match=f"process {os.getpid()} on "):
        model_dir.Owner(str(tmp_path))
    owner.release()


def test_a_released_directory_is_free_and_keeps_what_is_in_it(tmp_path, other_run):
    (tmp_path / "ckpt-1.index").write_text("x")
    model_dir.Owner(str(tmp_path)).release()
    other_run(tmp_path)
    assert (tmp_path / "ckpt-1.index").read_text() == "x"


def test_a_child_process_does_not_keep_the_directory(tmp_path):
    owner = model_dir.Owner(str(tmp_path))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner.release()
    model_dir.Owner(str(tmp_path)).release()
    child.communicate()


def test_an_owner_without_a_name_is_still_an_owner(tmp_path, other_run):
    other_run(tmp_path)
    (tmp_path / "owner.lock").write_text("")  # the moment before it is written
    with pytest.raises(errors.UsageError, match="in use by another process"):
        model_dir.Owner(str(tmp_path))


def test_a_directory_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "file" / "run")
    with pytest.raises(errors.UsageError, match=f"--model_dir={path} cannot be used"):
        model_dir.Owner(path)


@pytest.mark.parametrize("path", ["gs://bucket/run", "/runs/run[1]", "/runs/a*"])
def test_names_that_tensorflow_reads_differently_are_refused(path):
    with pytest.raises(errors.UsageError, match="--model_dir=") as caught:
        model_dir.check(path)
    assert path in str(caught.value)
