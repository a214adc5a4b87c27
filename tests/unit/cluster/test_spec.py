import pytest

from dtrain import config, errors
from dtrain.cluster.spec import JOBS, Cluster, Task, split_address

FULL = Cluster(
    {
        "ps": ["p0:1", "p1:1"],
        "evaluator": ["e:1"],
        "worker": ["w0:1", "w1:1", "w2:1"],
        "chief": ["c:1"],
    }
)


def message_of(call, *args, **kwargs):
    """The message of the UsageError that a call must raise; always one line."""
    with pytest.raises(errors.UsageError) as caught:
        call(*args, **kwargs)
    assert caught.value.exit_status == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_parts(message, parts):
    missing = [part for part in parts if part not in message]
    assert not missing, message


# Addresses.


@pytest.mark.parametrize(
    "address, host, port",
    [
        ("a:1", "a", 1),
        ("10.0.0.1:65535", "10.0.0.1", 65535),
        ("my_job-worker-0.svc.local:2222", "my_job-worker-0.svc.local", 2222),
        ("Host:0080", "Host", 80),
        ("[::1]:4000", "::1", 4000),
        ("[2001:DB8::2]:4000", "2001:DB8::2", 4000),
    ],
)
def test_split_address(address, host, port):
    assert split_address(address) == (host, port)


BAD_ADDRESSES = {
    "no port": ("a", ['"a"', "no port", "a:2222"]),
    "nothing after the colon": ("a:", ["no port", "a:2222"]),
    "no host": (":1", ["no host", "localhost:2222"]),
    "nothing": ("", ["no host", "localhost:2222"]),
    "port is no number": ("a:http", ['"http"', "not a number", "1 to 65535"]),
    "signed port": ("a:+1", ["not a number", "1 to 65535"]),
    "negative port": ("a:-1", ["not a number", "1 to 65535"]),
    "digits of another script": ("a:٣", ["not a number"]),
    "port with a path": ("a:1/x", ['"1/x"', "not a number"]),
    "port 0": ("a:0", ["port 0", "out of range", "1 to 65535"]),
    "port 65536": ("a:65536", ["65536", "out of range", "1 to 65535"]),
    "endless port": ("a:" + "9" * 5000, ["out of range", "1 to 65535"]),
    "grpc scheme": ("grpc://h:1", ["scheme", "write h:1."]),
    "http scheme": ("http://h:1/", ["scheme", "write h:1."]),
    "scheme alone": ("grpc://", ["scheme", "write host:port."]),
    "space": ("a:1 b:2", ["space", "commas", "a:1,b:2"]),
    "semicolon": ("a:1;b:2", ["semicolon", "commas", "a:1,b:2"]),
    "line break": ("a:1\nb:2", ["space", "commas"]),
    "strange character": ("a@b:1", ["character", "host:port"]),
    "two colons": ("a:1:2", ["more than one colon", "host:port"]),
    "bare IPv6 and port": ("fe80::5:4000", ["brackets", "write [fe80::5]:4000."]),
    "bare IPv6": ("fe80::1", ["brackets", "write [fe80::1]:2222."]),
    "bare IPv6, full": (
        "1:2:3:4:5:6:7:8:4000",
        ["brackets", "write [1:2:3:4:5:6:7:8]:4000."],
    ),
    "brackets, no port": ("[::1]", ["no port", "[::1]:2222"]),
    "brackets, colon alone": ("[::1]:", ["no port", "[::1]:2222"]),
    "brackets, bad port": ("[::1]:x", ["not a number"]),
    "brackets round a name": ("[host]:1", ["no IPv6", "without brackets"]),
    "bracket left open": ("[::1:1", ["no IPv6", "[::1]:2222"]),
}


@pytest.mark.parametrize(
    "address, parts", BAD_ADDRESSES.values(), ids=BAD_ADDRESSES.keys()
)
def test_bad_address(address, parts):
    assert_parts(message_of(split_address, address), parts)
    if address:
        assert_parts(message_of(Cluster, {"worker": [address]}), parts)


# Tasks.


def test_task_has_a_name_for_people_and_one_for_files():
    assert str(Task("ps", 0)) == "ps:0"
    assert Task("worker", 12).file_name == "worker-12"


@pytest.mark.parametrize(
    "task_type, index, parts",
    [
        ("wroker", 0, ['"wroker"', "chief, worker, ps, evaluator", "mean worker?"]),
        (None, 0, ["null", "Choose one of"]),
        ("ps", -1, ["-1", "ps", "from 0 up"]),
        ("ps", True, ["true", "from 0 up"]),
        ("ps", "0", ['"0"', "from 0 up"]),
        ("ps", 1.0, ["1.0", "from 0 up"]),
    ],
)
def test_bad_task(task_type, index, parts):
    assert_parts(message_of(Task, task_type, index), parts)


# Clusters.


def test_a_cluster_answers_questions():
    assert FULL.addresses("ps") == ("p0:1", "p1:1")
    assert FULL.address(Task("worker", 2)) == "w2:1"
    assert FULL.sizes() == {"chief": 1, "worker": 3, "ps": 2, "evaluator": 1}
    assert (FULL.num_workers, FULL.num_ps) == (3, 2)
    assert FULL.chief == Task("chief", 0)
    assert [str(task) for task in FULL.tasks()] == [
        *("chief:0", "worker:0", "worker:1", "worker:2"),
        *("ps:0", "ps:1", "evaluator:0"),
    ]
    assert FULL.to_dict() == {
        "chief": ["c:1"],
        "worker": ["w0:1", "w1:1", "w2:1"],
        "ps": ["p0:1", "p1:1"],
        "evaluator": ["e:1"],
    }


@pytest.mark.parametrize("listing", [FULL.jobs, FULL.sizes(), FULL.to_dict()])
def test_jobs_are_in_one_order_whatever_was_given(listing):
    assert tuple(listing) == JOBS


def test_without_a_chief_worker_0_leads():
    cluster = Cluster({"ps": ["p:1"], "worker": ["a:1", "b:1"]})
    assert cluster.chief == Task("worker", 0)
    assert cluster.addresses("chief") == ()


def test_what_was_given_can_change_afterwards():
    jobs = {"worker": ["a:1"]}
    cluster = Cluster(jobs)
    jobs["worker"].append("b:1")
    jobs["ps"] = ["c:1"]
    assert cluster.to_dict() == {"worker": ["a:1"]}


def test_clusters_that_mean_the_same_are_equal():
    assert Cluster({"worker": ["HOST:0022"], "ps": ["[0::1]:4"]}) == Cluster(
        {"ps": (" [::1]:4 ",), "worker": ("host:22",)}
    )
    assert Cluster({"worker": ["a:1", "b:1"]}) != Cluster({"worker": ["b:1", "a:1"]})


def test_without_leaves_one_job_out():
    assert "evaluator" not in FULL.without("evaluator").jobs
    assert FULL.without("evaluator").num_workers == 3
    assert FULL.without("chief").without("chief").chief == Task("worker", 0)
    assert "names no task" in message_of(Cluster({"ps": ["a:1"]}).without, "ps")


def test_address_of_a_task_that_is_not_there():
    message = message_of(FULL.address, Task("ps", 2))
    assert_parts(message, ["ps:2", '"ps": 2', "Choose one of", "ps:1"])


BAD_CLUSTERS = {
    "no job": ({}, ["{}", "names no task", '{"worker": ["host:port"]}']),
    "no mapping": (["a:1"], ["names no task", '{"worker": ["host:port"]}']),
    "nothing": (None, ["names no task"]),
    "unknown job": (
        {"wroker": ["a:1"]},
        ['"wroker"', "chief, worker, ps, evaluator", "Did you mean worker?"],
    ),
    "unknown job in capitals": ({"PS": ["a:1"]}, ['"PS"', "Did you mean ps?"]),
    "job without a name": ({None: ["a:1"]}, ["null", "unknown"]),
    "empty list": ({"worker": ["a:1"], "ps": []}, ['"ps"', "empty list", "leave"]),
    "a text": ({"ps": "a:1,b:2"}, ["not a list", 'Write ["a:1", "b:2"]']),
    "a sparse job": ({"worker": {"1": "a:1"}}, ["not a list", "in order"]),
    "nothing as list": ({"worker": None}, ["null, not a list"]),
    "a number": ({"worker": ["a:1", 5]}, ["has 5 for task 1", '"host:port"']),
    "a list in the list": ({"worker": [["a:1"]]}, ['["a:1"]', "task 0"]),
    "an empty item": ({"worker": ["a:1", " "]}, ["task 1", '"host:port"']),
    "twice in a job": (
        {"worker": ["a:1", "b:1", "a:1"]},
        ["a:1 is there twice", "worker:0", "worker:2", "Give each task its own"],
    ),
    "twice across jobs": (
        {"worker": ["a:1"], "ps": ["b:1", "a:1"]},
        ["a:1 is there twice", "worker:0", "ps:1"],
    ),
    "twice, other case": ({"worker": ["a:1"], "ps": ["A:01"]}, ["twice"]),
    "twice, IPv6": ({"worker": ["[::1]:1", "[0:0::1]:1"]}, ["[::1]:1 is there twice"]),
    "two chiefs": (
        {"chief": ["a:1", "b:1"]},
        ["2 chief tasks", "a:1, b:1", "Keep one"],
    ),
}


@pytest.mark.parametrize("jobs, parts", BAD_CLUSTERS.values(), ids=BAD_CLUSTERS.keys())
def test_bad_cluster(jobs, parts):
    assert_parts(message_of(Cluster, jobs), parts)


# Finding a task.


@pytest.mark.parametrize(
    "task_type, index, task",
    [
        ("worker", 2, Task("worker", 2)),
        ("worker", "2", Task("worker", 2)),
        ("worker", " 01 ", Task("worker", 1)),
        ("chief", None, Task("chief", 0)),
    ],
)
def test_find_task(task_type, index, task):
    assert FULL.find_task(task_type, index) == task


RANGE = "Give a whole number from 0 to 2."


@pytest.mark.parametrize(
    "task_type, index, parts",
    [
        ("wroker", 0, ['T="wroker"', '"worker": 3', "Choose", "Did you mean worker?"]),
        ("PS", 0, ['T="PS"', "Did you mean ps?"]),
        (None, 0, ["T=null", "Choose one of: chief, worker, ps"]),
        (["ps"], 0, ['T=["ps"]', "Choose"]),
        ("worker", None, ["I is missing", "3 worker tasks", RANGE]),
        ("worker", 3, ["I=3", "out of range", "3 worker tasks", RANGE]),
        ("worker", "3", ['I="3"', "out of range", RANGE]),
        ("worker", -1, ["I=-1", "out of range", RANGE]),
        ("worker", "-0", ['I="-0"', "out of range", RANGE]),
        ("worker", "9" * 5000, ["out of range", RANGE]),
        ("worker", 1.5, ["I=1.5", "not a whole number", RANGE]),
        ("worker", "1.0", ['I="1.0"', "not a whole number", RANGE]),
        ("worker", "one", ['I="one"', "not a whole number", RANGE]),
        ("worker", "", ["not a whole number", RANGE]),
        ("worker", True, ["I=true", "not a whole number", RANGE]),
        ("worker", [1], ["I=[1]", "not a whole number", RANGE]),
        ("chief", 1, ["I=1", "one chief task", "Give 0."]),
    ],
)
def test_find_task_that_is_not_there(task_type, index, parts):
    assert_parts(message_of(FULL.find_task, task_type, index, "T", "I"), parts)


def test_find_task_says_how_to_add_a_job():
    message = message_of(Cluster({"worker": ["a:1"]}).find_task, "ps", 0)
    assert_parts(message, ['"ps"', '{"worker": 1}', "add addresses for ps"])


# What strategies need.


@pytest.mark.parametrize("strategy", config.STRATEGIES)
def test_every_strategy_is_known(strategy):
    try:
        FULL.check_strategy(strategy)
    except errors.UsageError as error:
        assert f"--strategy={strategy} runs in one process" in str(error)


@pytest.mark.parametrize("jobs", [("ps", "worker"), ("ps", "worker", "chief"), JOBS])
def test_ps_takes_clusters_with_ps_and_worker(jobs):
    Cluster({job: FULL.addresses(job) for job in jobs}).check_strategy("ps")


LOCAL_INSTEAD = "--cluster=local to start a local cluster instead."


@pytest.mark.parametrize(
    "jobs, parts",
    [
        (["ps"], ["one worker task", '{"ps": 2}', "Add --worker_hosts=host:port"]),
        (["chief", "ps"], ["one worker task", '{"chief": 1, "ps": 2}']),
        (
            ["chief"],
            ["one ps task and one worker task", "--ps_hosts", "--worker_hosts"],
        ),
        (["evaluator"], ["one ps task and one worker task", '{"evaluator": 1}']),
    ],
)
def test_ps_refuses_clusters_without_worker(jobs, parts):
    cluster = Cluster({job: FULL.addresses(job) for job in jobs})
    message = message_of(cluster.check_strategy, "ps")
    assert_parts(message, ["--strategy=ps needs at least", *parts, LOCAL_INSTEAD])
    assert message.count("--strategy=") == 1  # no other strategy would take it


@pytest.mark.parametrize(
    "jobs, sizes",
    [
        (["worker"], '{"worker": 3}'),
        (["chief", "worker"], '{"chief": 1, "worker": 3}'),
        (["worker", "evaluator"], '{"worker": 3, "evaluator": 1}'),
    ],
)
def test_ps_refuses_clusters_without_ps_which_suit_sync(jobs, sizes):
    cluster = Cluster({job: FULL.addresses(job) for job in jobs})
    message = message_of(cluster.check_strategy, "ps")
    assert_parts(message, ["needs at least one ps task", sizes, LOCAL_INSTEAD])
    assert_parts(message, ["Add --ps_hosts=host:port", "or use --strategy=sync, or"])
    assert message.count("--strategy=") == 2


@pytest.mark.parametrize("jobs", [("worker",), ("worker", "chief"), JOBS])
def test_sync_takes_clusters_with_workers(jobs):
    Cluster({job: FULL.addresses(job) for job in jobs}).check_strategy("sync")


@pytest.mark.parametrize("jobs", [("chief",), ("ps",), ("chief", "ps")], ids=str)
def test_sync_refuses_clusters_without_workers(jobs):
    cluster = Cluster({job: FULL.addresses(job) for job in jobs})
    message = message_of(cluster.check_strategy, "sync")
    assert_parts(message, ["--strategy=sync needs at least one worker task"])
    assert_parts(message, ["Add --worker_hosts=host:port", LOCAL_INSTEAD])
    assert message.count("--strategy=") == 1  # no other strategy would take it


@pytest.mark.parametrize("strategy", ["local", "mirrored"])
def test_one_process_refuses_a_described_cluster(strategy):
    message = message_of(FULL.check_strategy, strategy)
    assert_parts(
        message,
        [
            f"--strategy={strategy} runs in one process",
            '"worker": 3',
            "Use --strategy=ps, or use --strategy=sync, or",
        ],
    )
    assert "--cluster=local to ignore the description." in message


def test_local_recommends_no_strategy_that_would_refuse_the_cluster():
    message = message_of(Cluster({"worker": ["a:1"]}).check_strategy, "local")
    assert "--strategy=ps" not in message
    assert_parts(message, ["Use --strategy=sync, or give --cluster=local to ignore"])
    message = message_of(Cluster({"chief": ["a:1"]}).check_strategy, "local")
    assert message.count("--strategy=") == 1
    assert "Give --cluster=local to ignore the description." in message


def test_workers_are_counted_by_host_for_their_gpus():
    cluster = Cluster({"worker": ["a:1", "b:1", "a:2", "A:3"], "ps": ["a:4"]})
    ranks = [cluster.rank_on_host(Task("worker", i)).index for i in range(4)]
    assert ranks == [0, 0, 1, 2]
    assert cluster.rank_on_host(Task("ps", 0)) == Task("ps", 0)


def test_tasks_know_their_place_on_their_host():
    cluster = Cluster({"chief": ["a:1"], "worker": ["b:1", "A:2", "b:2", "a:3"]})
    places = [cluster.place_on_host(task) for task in cluster.tasks()]
    # In the order chief, worker 0 to 3: places on a and b, as one counts each host.
    assert places == [(0, 3), (0, 2), (1, 3), (1, 2), (2, 3)]


def test_servers_are_the_tasks_that_a_chief_drives():
    cluster = Cluster({"chief": ["a:1"], "worker": ["a:2"], "ps": ["a:3"]})
    assert cluster.servers() == (Task("worker", 0), Task("ps", 0))
