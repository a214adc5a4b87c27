import json

import pytest

from dtrain import errors
from dtrain.cluster import tf_config
from dtrain.cluster.spec import Cluster, Task

JOBS = {"worker": ["w0:1", "w1:1"], "ps": ["p0:1"]}
TASK = {"type": "worker", "index": 1}


def as_text(cluster=JOBS, task=TASK, **others):
    return json.dumps({"cluster": cluster, "task": task, **others})


@pytest.mark.parametrize(
    "jobs",
    [
        {"worker": ["a:1"]},
        {"ps": ["a:1", "b:1"], "worker": ["c:1", "d:1"]},
        {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"], "evaluator": ["d:1"]},
        {"chief": ["[::1]:1"], "worker": ["[fe80::2%eth0]:65535"], "ps": ["X.y:022"]},
    ],
)
def test_what_is_built_is_parsed_back(jobs):
    cluster = Cluster(jobs)
    for task in [*cluster.tasks(), Task("evaluator", 0)]:
        assert tf_config.parse(tf_config.build(cluster, task)) == (cluster, task, [])


def test_build_writes_what_tensorflow_reads():
    text = tf_config.build(Cluster(JOBS), Task("ps", 0))
    assert json.loads(text) == {"cluster": JOBS, "task": {"type": "ps", "index": 0}}


def test_build_refuses_a_task_that_is_not_in_the_cluster():
    with pytest.raises(errors.UsageError, match="ps:1 is not in the cluster"):
        tf_config.build(Cluster(JOBS), Task("ps", 1))


def test_other_keys_are_left_alone():
    text = as_text(task={**TASK, "trial": "3"}, environment="cloud", rpc_layer="grpc")
    assert tf_config.parse(text) == (Cluster(JOBS), Task("worker", 1), [])


def test_an_index_may_be_a_string():
    text = as_text(task={"type": "worker", "index": "1"})
    assert tf_config.parse(text)[1] == Task("worker", 1)


def test_the_only_task_of_a_job_needs_no_index():
    assert tf_config.parse(as_text(task={"type": "ps"}))[1] == Task("ps", 0)


def test_an_evaluator_in_the_cluster():
    cluster, task, _ = tf_config.parse(as_text({**JOBS, "evaluator": ["e:1"]}))
    assert cluster.sizes() == {"worker": 2, "ps": 1, "evaluator": 1}
    assert cluster.without("evaluator") == Cluster(JOBS)
    assert task == Task("worker", 1)


@pytest.mark.parametrize("task", [{"index": 0}, {"index": "0"}, {}])
def test_an_evaluator_may_be_outside_of_the_cluster(task):
    cluster, task, _ = tf_config.parse(as_text(task={"type": "evaluator", **task}))
    assert (cluster, task) == (Cluster(JOBS), Task("evaluator", 0))


@pytest.mark.parametrize(
    "master, task_type, task",
    [
        ("master", "master", Task("chief", 0)),
        ("master", "chief", Task("chief", 0)),
        ("master", "worker", Task("worker", 0)),
        ("chief", "master", Task("chief", 0)),
    ],
)
def test_a_master_is_the_chief_and_one_notice_says_so(master, task_type, task):
    jobs = {"worker": ["w:1"], "ps": ["p:1"]}
    cluster, found, notices = tf_config.parse(
        as_text({**jobs, master: ["m:1"]}, {"type": task_type, "index": 0})
    )
    assert cluster == Cluster({**jobs, "chief": ["m:1"]})
    assert found == task
    assert len(notices) == 1
    assert '"master"' in notices[0] and '"chief"' in notices[0]


EXAMPLE = 'Write {"cluster": {"worker": ["host:port"]'

BAD = {
    "not JSON": ("worker", ["not JSON", "line 1 column 1", "worker", EXAMPLE]),
    "single quotes": ("{'cluster': {}}", ["not JSON", "double quotes", EXAMPLE]),
    "cut off, several lines": ('{\n"cluster":\n', ["not JSON", '{ "cluster":']),
    "a list": ("[1, 2]", ["is [1, 2], not an object", EXAMPLE]),
    "JSON in JSON": (json.dumps(as_text()), ["not an object", EXAMPLE]),
    "null": ("null", ["is null, not an object", EXAMPLE]),
    "no cluster": (json.dumps({"task": TASK}), ['no "cluster"', EXAMPLE]),
    "no task": (json.dumps({"cluster": JOBS}), ['no "task"', EXAMPLE]),
    "empty cluster": (as_text({}), ['{} as its "cluster"', EXAMPLE]),
    "cluster is a list": (as_text(["a:1"]), ['["a:1"] as its "cluster"', EXAMPLE]),
    "task is a text": (as_text(task="ps:0"), ['"ps:0" as its "task"', EXAMPLE]),
    "task is null": (as_text(task=None), ['null as its "task"', EXAMPLE]),
    "task without a type": (as_text(task={"index": 0}), ['no "type"', EXAMPLE]),
    "job is a text": (as_text({"worker": "a:1"}), ["not a list", 'Write ["a:1"]']),
    "job is an object": (as_text({"worker": {"0": "a:1"}}), ["not a list", "in order"]),
    "job is empty": (as_text({**JOBS, "ps": []}), ['"ps"', "empty list", "leave"]),
    "item is a number": (as_text({"worker": [1]}), ["has 1 for task 0", "host:port"]),
    "item is empty": (as_text({"worker": ["a:1", ""]}), ["task 1", "host:port"]),
    "unknown job": (as_text({"wroker": ["a:1"]}), ['"wroker"', "mean worker?"]),
    "no port": (as_text({"worker": ["a"]}), ["no port", "Write a:2222"]),
    "port no number": (as_text({"worker": ["a:b"]}), ["not a number", "65535"]),
    "port too big": (as_text({"worker": ["a:65536"]}), ["out of range", "65535"]),
    "scheme": (as_text({"worker": ["grpc://a:1"]}), ["scheme", "write a:1"]),
    "address twice": (
        as_text({"worker": ["a:1"], "ps": ["A:1"]}),
        ["twice", "worker:0", "ps:0", "its own"],
    ),
    "two chiefs": (as_text({"chief": ["a:1", "b:1"]}), ["2 chief tasks", "Keep one"]),
    "two masters": (as_text({"master": ["a:1", "b:1"]}), ["2 chief tasks"]),
    "master and chief": (
        as_text({**JOBS, "master": ["a:1"], "chief": ["b:1"]}),
        ['"master"', '"chief"', 'Keep "chief"'],
    ),
    "type not in the cluster": (
        as_text(task={"type": "chief", "index": 0}),
        ['type="chief"', '{"worker": 2, "ps": 1}', "add addresses for chief"],
    ),
    "unknown type": (
        as_text(task={"type": "wroker", "index": 0}),
        ['type="wroker"', "Choose one of: worker, ps", "Did you mean worker?"],
    ),
    "type is no text": (as_text(task={"type": ["ps"]}), ['type=["ps"]', "Choose"]),
    "master where there is none": (
        as_text(task={"type": "master", "index": 0}),
        ['type="master"', "Choose one of: worker, ps"],
    ),
    "index missing": (as_text(task={"type": "worker"}), ["index is missing", "0 to 1"]),
    "evaluator number 1": (
        as_text(task={"type": "evaluator", "index": 1}),
        ["index=1", "out of range", "one evaluator task", "Give 0."],
    ),
}
for shown, index in {
    "1.5": 1.5,
    "1.0": 1.0,
    '"one"': "one",
    '"1.0"': "1.0",
    "true": True,
    "[0]": [0],
    '""': "",
}.items():
    BAD[f"index {shown}"] = (
        as_text(task={"type": "worker", "index": index}),
        [f"index={shown} is not a whole number", "from 0 to 1"],
    )
for shown, index in {"-1": -1, '"-1"': "-1", "2": 2, '"2"': "2"}.items():
    BAD[f"index {shown}"] = (
        as_text(task={"type": "worker", "index": index}),
        [f"index={shown} is out of range", "2 worker tasks", "from 0 to 1"],
    )


@pytest.mark.parametrize("text, parts", BAD.values(), ids=BAD.keys())
def test_bad_tf_config(text, parts):
    with pytest.raises(errors.UsageError) as caught:
        tf_config.parse(text)
    message = str(caught.value)
    assert caught.value.exit_status == 2
    assert message.startswith("TF_CONFIG")
    assert "\n" not in message
    assert [part for part in parts if part not in message] == [], message


@pytest.mark.parametrize(
    "text, there",
    [
        (None, False),
        ("", False),
        (" \n", False),
        ("{}", False),
        (" { }\n", False),
        ("null", True),
        ("[]", True),
        ('{"cluster": {}}', True),
        (as_text(), True),
    ],
)
def test_an_empty_tf_config_is_not_there(text, there):
    assert tf_config.is_there(text) is there
