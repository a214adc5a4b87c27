import json

import pytest

from dtrain import errors
from dtrain.cluster import sources
from dtrain.cluster.spec import Cluster, Task
from dtrain.config import RunConfig

CLUSTER = Cluster({"ps": ["p0:1", "p1:1"], "worker": ["w0:1", "w1:1"]})
TASK = Task("worker", 1)

FLAGS = {
    "ps_hosts": "p0:1,p1:1",
    "worker_hosts": "w0:1,w1:1",
    "job_name": "worker",
    "task_index": 1,
}
ENV = {
    "PS_HOSTS": "p0:1,p1:1",
    "WORKER_HOSTS": "w0:1,w1:1",
    "JOB_NAME": "worker",
    "TASK_INDEX": "1",
}


def tf_config(jobs=None, task_type="worker", index=1):
    jobs = jobs or CLUSTER.to_dict()
    task = {"type": task_type, "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": jobs, "task": task})}


def find(flags=(), environ=(), cluster="auto"):
    return sources.find(RunConfig(cluster=cluster, **dict(flags)), dict(environ))


def message_of(*args, **kwargs):
    """The message of the UsageError that `find` must raise; always one line."""
    with pytest.raises(errors.UsageError) as caught:
        find(*args, **kwargs)
    assert caught.value.exit_status == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_parts(message, parts):
    missing = [part for part in parts if part not in message]
    assert not missing, message


# Which source is taken.


@pytest.mark.parametrize(
    "flags, environ, cluster, name",
    [
        (FLAGS, {}, "auto", "flags"),
        ({}, ENV, "auto", "env"),
        ({}, tf_config(), "auto", "tf_config"),
        (FLAGS, ENV | tf_config(), "auto", "flags"),
        ({}, ENV | tf_config(), "auto", "env"),
        (FLAGS, ENV | tf_config(), "env", "env"),
        (FLAGS, ENV | tf_config(), "tf_config", "tf_config"),
        ({}, ENV | tf_config(), "tf_config", "tf_config"),
    ],
)
def test_a_described_cluster(flags, environ, cluster, name):
    assert find(flags, environ, cluster) == sources.Source(name, CLUSTER, TASK, ())


@pytest.mark.parametrize(
    "flags, environ, cluster",
    [
        ({}, {}, "auto"),
        ({}, {"JOB_NAME": "nightly-build", "TASK_INDEX": "7"}, "auto"),
        ({}, {"CHIEF_HOST": "c:1", "JOB_NAME": "chief"}, "auto"),
        ({}, {"PS_HOSTS": "", "WORKER_HOSTS": " ", "JOB_NAME": "ps"}, "auto"),
        ({}, {"TF_CONFIG": ""}, "auto"),
        ({}, {"TF_CONFIG": " {} "}, "auto"),
        ({}, {}, "local"),
        (FLAGS, ENV | tf_config(), "local"),
        ({"job_name": "ps"}, {"TF_CONFIG": "nonsense"}, "local"),
    ],
)
def test_a_local_cluster(flags, environ, cluster):
    assert find(flags, environ, cluster) == sources.Source("local", None, None, ())


@pytest.mark.parametrize(
    "cluster, flags, environ, parts",
    [
        ("flags", {}, ENV | tf_config(), ["--ps_hosts", "is given", "leave out"]),
        ("env", FLAGS, {"JOB_NAME": "ps"}, ["PS_HOSTS", "is set", "Set them"]),
        ("env", {}, {"CHIEF_HOST": "c:1"}, ["neither PS_HOSTS nor WORKER_HOSTS"]),
        ("tf_config", FLAGS, ENV, ["TF_CONFIG is not set", "Set it"]),
        ("tf_config", {}, {"TF_CONFIG": "{}"}, ["TF_CONFIG", "or empty"]),
    ],
)
def test_the_source_asked_for_is_not_there(cluster, flags, environ, parts):
    message = message_of(flags, environ, cluster)
    assert_parts(message, [f"--cluster={cluster}, but", "leave out --cluster", *parts])


def test_an_explicit_source_is_taken_alone():
    broken = {"PS_HOSTS": "nonsense", "TF_CONFIG": "nonsense"}
    assert find(FLAGS, broken, "flags").cluster == CLUSTER


def test_notices_come_along():
    environ = tf_config({"master": ["m:1"], "worker": ["w:1"]}, "master", 0)
    source = find({}, environ)
    assert source.task == Task("chief", 0)
    assert len(source.notices) == 1 and "master" in source.notices[0]


# Flags and environment variables have one reader: each case runs as both.

KEYS = ("ps_hosts", "worker_hosts", "chief_host", "job_name", "task_index")


@pytest.fixture(params=["flags", "env"])
def source(request):
    return request.param


def given(source, changes):
    """The arguments of `find` for FLAGS with changes (None: left out)."""
    values = {k: v for k, v in {**FLAGS, **changes}.items() if v is not None}
    if source == "flags":
        return {"flags": values}
    return {"environ": {key.upper(): str(value) for key, value in values.items()}}


def in_words_of(source, text):
    """Replaces {ps_hosts} by --ps_hosts or PS_HOSTS, and so on."""
    for key in KEYS:
        name = f"--{key}" if source == "flags" else key.upper()
        text = text.replace("{" + key + "}", name)
    return text


@pytest.mark.parametrize(
    "changes, jobs, task",
    [
        (
            {"chief_host": "c:1", "job_name": "chief", "task_index": 0},
            {**CLUSTER.to_dict(), "chief": ["c:1"]},
            Task("chief", 0),
        ),
        ({"job_name": "ps", "task_index": 0}, CLUSTER.to_dict(), Task("ps", 0)),
        (
            {"ps_hosts": "p0:1, p1:1 ,p2:1"},
            {**CLUSTER.to_dict(), "ps": ["p0:1", "p1:1", "p2:1"]},
            TASK,
        ),
        (
            {"ps_hosts": "[::1]:1,[fe80::2]:1"},
            {**CLUSTER.to_dict(), "ps": ["[::1]:1", "[fe80::2]:1"]},
            TASK,
        ),
        # No ps is for the strategy to judge.
        ({"ps_hosts": None}, {"worker": ["w0:1", "w1:1"]}, TASK),
        # The only task of its job needs no index.
        (
            {"ps_hosts": "p0:1", "job_name": "ps", "task_index": None},
            {**CLUSTER.to_dict(), "ps": ["p0:1"]},
            Task("ps", 0),
        ),
    ],
)
def test_hosts(source, changes, jobs, task):
    found = find(**given(source, changes))
    assert found == sources.Source(source, Cluster(jobs), task)


BAD = {
    "empty item": (
        {"ps_hosts": "a:1,,b:2"},
        ['{ps_hosts}="a:1,,b:2"', "nothing as item 2", "{ps_hosts}=a:1,b:2."],
    ),
    "comma at the end": (
        {"worker_hosts": "a:1,"},
        ['{worker_hosts}="a:1,"', "nothing as item 2", "{worker_hosts}=a:1."],
    ),
    "only commas": ({"ps_hosts": ", ,"}, ["{ps_hosts}", "empty list", "leave it out"]),
    "no port": ({"ps_hosts": "a:1,b"}, ["{ps_hosts}", '"b" has no port', "b:2222"]),
    "port no number": ({"ps_hosts": "a:x"}, ["{ps_hosts}", "not a number", "65535"]),
    "port 0": ({"ps_hosts": "a:0"}, ["{ps_hosts}", "out of range", "1 to 65535"]),
    "port too big": ({"ps_hosts": "a:65536"}, ["{ps_hosts}", "65536", "1 to 65535"]),
    "scheme": ({"ps_hosts": "grpc://h:1"}, ["{ps_hosts}", "scheme", "write h:1."]),
    "spaces only": ({"ps_hosts": "a:1 b:2"}, ["{ps_hosts}", "commas", "a:1,b:2"]),
    "bare IPv6": ({"ps_hosts": "::1:4000"}, ["{ps_hosts}", "write [::1]:4000."]),
    "twice in one list": (
        {"ps_hosts": "a:1,a:1"},
        ["{ps_hosts}, {worker_hosts}", "twice", "ps:0", "ps:1", "its own"],
    ),
    "twice across lists": (
        {"ps_hosts": "W1:01"},
        ["w1:1 is there twice", "worker:1", "ps:0", "its own"],
    ),
    "two chiefs": (
        {"chief_host": "a:1,b:1"},
        ["{chief_host}", "2 chief tasks", "Keep one"],
    ),
    "no job": (
        {"job_name": None},
        ["{job_name} is missing", '{"worker": 2, "ps": 2}', "(worker or ps)"],
    ),
    "neither job nor index": (
        {"job_name": None, "task_index": None},
        ["{job_name} is missing", "Give {job_name}", "{task_index}"],
    ),
    "unknown job": (
        {"job_name": "wroker"},
        ['{job_name}="wroker"', "Choose one of: worker, ps", "Did you mean worker?"],
    ),
    "job in capitals": ({"job_name": "PS"}, ['{job_name}="PS"', "Did you mean ps?"]),
    "job without hosts": (
        {"ps_hosts": None, "job_name": "ps"},
        ['{job_name}="ps"', '{"worker": 2}', "add addresses for ps"],
    ),
    "no index": (
        {"task_index": None},
        ["{task_index} is missing", "2 worker tasks", "from 0 to 1"],
    ),
    "negative index": ({"task_index": -1}, ["{task_index}=", "-1", "from 0 to 1"]),
    "index too big": (
        {"task_index": 2},
        ["{task_index}=", "out of range", "2 worker tasks", "from 0 to 1"],
    ),
    "index no number": (
        {"task_index": "one"},
        ['{task_index}="one"', "not a whole number", "from 0 to 1"],
    ),
    "index not whole": (
        {"task_index": 0.5},
        ["{task_index}=", "0.5", "not a whole number", "from 0 to 1"],
    ),
    "index true": ({"task_index": True}, ["not a whole number", "from 0 to 1"]),
}


@pytest.mark.parametrize("changes, parts", BAD.values(), ids=BAD.keys())
def test_bad_hosts(source, changes, parts):
    message = message_of(**given(source, changes))
    assert_parts(message, [in_words_of(source, part) for part in parts])


@pytest.mark.parametrize(
    "flags, name",
    [
        ({"job_name": "ps"}, "--job_name"),
        ({"job_name": "ps", "task_index": 0}, "--job_name"),
        ({"task_index": 0}, "--task_index"),
    ],
)
def test_flags_without_hosts(flags, name):
    message = message_of(flags)
    assert_parts(message, [f"{name} is given, but no hosts", "Add --ps_hosts="])
    # The hosts are not taken from elsewhere, but the message knows of them.
    message = message_of(flags, ENV)
    assert_parts(message, ["no hosts", "ignore the flags: --cluster=env."])


@pytest.mark.parametrize("key", ["ps_hosts", "worker_hosts", "chief_host"])
def test_an_empty_flag_is_refused(key):
    # Otherwise --ps_hosts=$HOSTS without HOSTS would start a local cluster.
    for value, part in (("", "no text"), (" , ", "empty list")):
        assert_parts(message_of({key: value}), [f"--{key}=", part, "leave it out"])


def test_an_empty_job_name_is_refused():
    for value, part in (("", "--job_name=''"), (" ", "Choose one of: worker, ps")):
        assert part in message_of({**FLAGS, "job_name": value})


def test_empty_variables_are_not_set():
    environ = {**ENV, "PS_HOSTS": "", "CHIEF_HOST": " "}
    assert find({}, environ).cluster.sizes() == {"worker": 2}
    assert "JOB_NAME is missing" in message_of({}, {**ENV, "JOB_NAME": ""})
    assert "TASK_INDEX is missing" in message_of({}, {**ENV, "TASK_INDEX": ""})


# Two sources.


@pytest.mark.parametrize(
    "flags, environ, parts",
    [
        (
            FLAGS,
            tf_config({**CLUSTER.to_dict(), "ps": ["p0:1", "other:1"]}),
            [
                "The flags and TF_CONFIG disagree",
                "ps is p0:1,p1:1 in the flags and p0:1,other:1 in TF_CONFIG",
                "--cluster=flags or --cluster=tf_config.",
            ],
        ),
        (
            FLAGS,
            tf_config({**CLUSTER.to_dict(), "chief": ["c:1"]}),
            ["chief is absent in the flags and c:1 in TF_CONFIG", "pick one"],
        ),
        (
            FLAGS,
            tf_config(index=0),
            ["the task is worker:1 in the flags and worker:0 in TF_CONFIG", "pick one"],
        ),
        (
            FLAGS,
            tf_config({"ps": ["p0:1", "p1:1"], "worker": ["w0:1"]}, "ps", 0),
            ["worker is w0:1,w1:1 in", "; the task is worker:1 in the flags and ps:0"],
        ),
        (
            FLAGS,
            ENV | {"TASK_INDEX": "0"},
            ["The flags and the environment disagree", "--cluster=flags or", "=env."],
        ),
        (
            FLAGS,
            ENV | tf_config(index=0),
            ["The flags and TF_CONFIG disagree", "--cluster=tf_config."],
        ),
        (
            {},
            ENV | tf_config(index=0),
            ["The environment and TF_CONFIG disagree", "--cluster=env or"],
        ),
    ],
)
def test_two_sources_disagree(flags, environ, parts):
    assert_parts(message_of(flags, environ), parts)


def test_two_sources_agree_in_other_words():
    environ = tf_config({"worker": ["W0:1", "w1:01"], "ps": ["p0:1", "P1:1"]})
    assert find(FLAGS, environ).name == "flags"


def test_a_script_may_export_the_hosts_that_it_passes_as_flags():
    environ = {"PS_HOSTS": ENV["PS_HOSTS"], "WORKER_HOSTS": ENV["WORKER_HOSTS"]}
    assert find(FLAGS, environ).task == TASK
    environ["PS_HOSTS"] = "other:1"
    assert "ps is p0:1,p1:1 in the flags" in message_of(FLAGS, environ)


@pytest.mark.parametrize(
    "flags, environ, end",
    [
        (FLAGS, {"TF_CONFIG": "x"}, "Or ignore TF_CONFIG: --cluster=flags."),
        (
            {**FLAGS, "task_index": 9},
            ENV | tf_config(),
            "Or ignore the flags: --cluster=env or --cluster=tf_config.",
        ),
    ],
)
def test_one_of_two_sources_is_malformed(flags, environ, end):
    assert message_of(flags, environ).endswith(end)


def test_the_only_source_is_malformed():
    assert_parts(message_of({}, {"TF_CONFIG": "x"}), ["TF_CONFIG is not JSON"])
    assert "ignore" not in message_of({}, {"TF_CONFIG": "x"})


# Leftover arguments.


@pytest.mark.parametrize(
    "leftovers, start",
    [
        (["b:2"], 'Leftover argument "b:2". '),
        (["b:2,"], 'Leftover argument "b:2,". '),
        ([",", "b:2"], 'Leftover arguments ",", "b:2". '),
        (["b:2,", "c:3"], 'Leftover arguments "b:2,", "c:3". '),
        (["b:2,[::1]:3"], 'Leftover argument "b:2,[::1]:3". '),
        (["b:2, c:3"], 'Leftover argument "b:2, c:3". '),
    ],
)
def test_leftover_hosts(leftovers, start):
    assert sources.leftover_message(leftovers) == (
        f"{start}A list of hosts is one argument: write --ps_hosts=a:1,b:2 "
        'without spaces, or quote it: --ps_hosts="a:1, b:2".'
    )


@pytest.mark.parametrize(
    "leftovers", [["ps"], ["train_steps=5"], ["package.module:function"], [","], [""]]
)
def test_other_leftovers(leftovers):
    message = sources.leftover_message(leftovers)
    assert_parts(
        message, [f'Leftover argument "{leftovers[0]}".', "write --name=value"]
    )
    assert "hosts" not in message


def test_leftovers_make_one_line():
    assert "\n" not in sources.leftover_message(["a\nb"])
