"""Which role a process plays, and which options do not go with it."""

import json

import pytest

from dtrain import errors, run
from dtrain.cluster.spec import Task
from dtrain.config import RunConfig
from dtrain.launch import gpus

HOSTS = {"ps_hosts": "a:1,b:1", "worker_hosts": "c:1,d:1,e:1"}


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    """No cluster is described and no GPU visible, whatever the machine has."""
    for name in ("PS_HOSTS", "WORKER_HOSTS", "CHIEF_HOST", "JOB_NAME", "TASK_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")


def find(**options):
    return run._find_source(RunConfig(**options))


def role_of(**options):
    return find(**options)[1].name


def message_of(**options):
    with pytest.raises(errors.UsageError) as caught:
        find(**options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_parts(message, parts):
    assert not [part for part in parts if part not in message], message


@pytest.mark.parametrize(
    ("strategy", "role"),
    [
        ("local", "ALONE"),
        ("mirrored", "ALONE"),
        ("ps", "LAUNCHER"),
        ("sync", "LAUNCHER"),
    ],
)
def test_without_a_cluster_a_process_is_alone_or_launches_one(strategy, role):
    assert role_of(strategy=strategy) == role


@pytest.mark.parametrize(
    ("strategy", "job", "index", "role"),
    [
        ("ps", "ps", 0, "SERVER"),
        ("ps", "worker", 0, "CHIEF"),
        ("ps", "worker", 1, "SERVER"),
        ("sync", "ps", 0, "UNNEEDED"),
        ("sync", "ps", 1, "UNNEEDED"),
        ("sync", "worker", 0, "CHIEF"),
        ("sync", "worker", 2, "WORKER"),
    ],
)
@pytest.mark.parametrize("chief_host", [None, "f:1"], ids=["no chief", "chief"])
def test_a_task_has_the_role_that_its_strategy_gives_it(
    strategy, job, index, role, chief_host
):
    if chief_host and role == "CHIEF":
        role = {"ps": "SERVER", "sync": "WORKER"}[strategy]
    source, found, _ = find(
        strategy=strategy,
        job_name=job,
        task_index=index,
        chief_host=chief_host,
        **HOSTS,
    )
    assert found.name == role
    assert source.task == Task(job, index)


@pytest.mark.parametrize("strategy", ["ps", "sync"])
def test_a_chief_leads_if_there_is_one(strategy):
    task = {"job_name": "chief", "task_index": 0, "chief_host": "f:1"}
    assert role_of(strategy=strategy, **task, **HOSTS) == "CHIEF"


def test_under_sync_the_ps_of_a_tf1_layout_are_left_out():
    source, *_ = find(strategy="sync", job_name="worker", task_index=1, **HOSTS)
    assert source.cluster.sizes() == {"worker": 3}
    source, *_ = find(strategy="ps", job_name="worker", task_index=1, **HOSTS)
    assert source.cluster.sizes() == {"worker": 3, "ps": 2}


def describe(monkeypatch, task_type, index=0):
    cluster = {"worker": ["a:1", "b:1"], "evaluator": ["c:1"]}
    task = {"type": task_type, "index": index}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))


def test_an_evaluator_is_described_like_any_task(monkeypatch):
    describe(monkeypatch, "evaluator")
    assert role_of(strategy="sync") == "EVALUATOR"


@pytest.mark.parametrize("hosts", [{}, HOSTS], ids=["alone", "hosts"])
def test_an_evaluator_needs_no_address(hosts):
    assert role_of(job_name="evaluator", **hosts) == "EVALUATOR"


def test_an_evaluator_is_left_out_of_the_others_cluster(monkeypatch):
    describe(monkeypatch, "worker", 1)
    source, role, config = find(strategy="sync")
    assert source.cluster.sizes() == {"worker": 2}
    assert role.name == "WORKER"
    assert config.evaluator  # so the others know that somebody evaluates


@pytest.mark.parametrize("strategy", ["local", "mirrored"])
def test_one_process_is_none_of_a_cluster(strategy):
    message = message_of(strategy=strategy, job_name="worker", task_index=0, **HOSTS)
    assert_parts(message, [f"--strategy={strategy} runs in one process"])
    assert role_of(strategy=strategy, cluster="local", **HOSTS) == "ALONE"


# What does not go with a role.


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (
            {"strategy": "sync", "num_ps": 2},
            ["--num_ps=2", "--strategy=sync has no ps"],
        ),
        ({"strategy": "local", "num_ps": 2}, ["--num_ps=2", "one process"]),
        (
            {"strategy": "mirrored", "num_workers": 3},
            ["--num_workers=3", "one process"],
        ),
        (
            {"strategy": "sync", "num_workers": 3, "job_name": "worker", **HOSTS},
            ["--num_workers=3", "this run is described"],
        ),
        (
            {"strategy": "ps", "num_ps": 2, "job_name": "ps", **HOSTS},
            ["--num_ps=2", "this run is described"],
        ),
    ],
    ids=str,
)
def test_the_size_of_a_local_cluster_is_refused_without_one(options, parts):
    if "job_name" in options:
        options = {"task_index": 0, **options}
    assert_parts(message_of(**options), [*parts, "Leave --num_"])


def test_a_local_cluster_has_the_size_that_is_asked_for():
    assert role_of(strategy="sync", num_workers=3) == "LAUNCHER"
    assert role_of(strategy="ps", num_workers=3, num_ps=2) == "LAUNCHER"


def test_several_replicas_in_a_process_of_sync_need_gpus(monkeypatch):
    message = message_of(strategy="sync", devices_per_task=2)
    assert_parts(message, ["--devices_per_task=2", "as many GPUs", "mirrored"])
    assert role_of(strategy="sync", devices_per_task=1) == "LAUNCHER"
    assert role_of(strategy="mirrored", devices_per_task=2) == "ALONE"
    # A variable that names GPUs makes none.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(gpus, "_list_devices", list)
    assert message_of(strategy="sync", devices_per_task=2) == message
    monkeypatch.setattr(gpus, "_list_devices", lambda: ["any"])
    assert role_of(strategy="sync", devices_per_task=2) == "LAUNCHER"
