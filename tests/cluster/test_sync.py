"""Synchronous training is synchronous: it does what one process does, and meets, agrees
and parts as one."""

import json
import re
import signal
import socket

import numpy as np
import pytest

# The packaged digits with what makes updates depend on more than plain gradients. With
# DROP set, the second process loses its gradient on the way.
EQUIVALENCE = """
import json, os
import dtrain, keras
from dtrain.data import digits
from dtrain.strategies import reduction

task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {})
if os.environ.get("DROP") and task.get("index") == 1:
    whole = reduction.Reduction.sum

    def without(self, gradients, *args):
        return whole(self, [0.0 * gradient for gradient in gradients], *args)

    reduction.Reduction.sum = without

@dtrain.defaults(train_steps=100)
def experiment(config):
    def model():
        l2 = keras.regularizers.L2(1e-3)
        return keras.Sequential([
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu", kernel_regularizer=l2),
            keras.layers.Dense(10),
        ])
    return dtrain.Experiment(
        model=model,
        optimizer=lambda: keras.optimizers.SGD(0.2, global_clipnorm=0.5),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        train_data=lambda ctx: digits.train_batches(
            ctx, batch_size=config.batch_size, seed=config.seed),
    )
"""

# All see the same 100 examples in each step.
WAYS = {
    "two workers": ("--strategy=sync", "--num_workers=2", "--batch_size=50"),
    "four workers": ("--strategy=sync", "--num_workers=4", "--batch_size=25"),
    "two devices": ("--strategy=mirrored", "--devices_per_task=2", "--batch_size=50"),
    "two micro-batches": (
        "--strategy=local",
        "--accumulate_steps=2",
        "--batch_size=50",
    ),
}


def test_many_ways_to_share_a_batch_give_the_same_loss_at_every_step(lab):
    """What is left is float32's rounding: partial sums are added in another order."""
    (lab.folder / "same.py").write_text(EQUIVALENCE)

    def losses(name, *flags, env=None):
        folder = lab.folder / name
        run = lab.dtrain(
            "--experiment=same:experiment",
            f"--model_dir={folder}",
            "--log_every=1",
            "--summary_every=1",
            *flags,
            env=env,
            name=name,
        )
        assert run.wait() == 0
        assert run.output.count("\nstep ") == 100
        found = list(lab.events(folder / "train")["train/loss"].values())
        assert len(found) == 100
        return found

    expected = losses("whole", "--strategy=local", "--batch_size=100")
    assert expected[-1] < 0.5 < expected[0]
    for name, flags in WAYS.items():
        np.testing.assert_allclose(
            losses(name, *flags), expected, rtol=1e-4, err_msg=name
        )
    # The comparison can fail: half of the gradient is lost.
    dropped = losses("dropped", *WAYS["two workers"], env={"DROP": "1"})
    assert dropped[0] == pytest.approx(expected[0], rel=1e-4)
    assert np.max(np.abs(np.divide(dropped, expected) - 1)) > 0.01


# A task as a Python program, which can look at its model when training is over.
AGREEMENT = """
import json, os, sys
import numpy as np
import dtrain
from dtrain.experiments import mnist_cnn

models = []

def experiment(config):
    found = mnist_cnn.experiment(config)
    def model():
        models.append(found.model())
        return models[-1]
    return dtrain.Experiment(
        model=model, optimizer=found.optimizer, loss=found.loss,
        metrics=found.metrics, train_data=found.train_data)

task = json.loads(os.environ["TF_CONFIG"])["task"]
name = f"{task['type']}-{task['index']}"
result = dtrain.train(experiment, dtrain.RunConfig(
    strategy="sync", batch_size=16, train_steps=30, model_dir=f"{sys.argv[1]}/{name}"))
(model,) = models
np.savez(f"{sys.argv[1]}/{name}.npz", *[v.numpy() for v in model.variables])
print("result", result and result["global_step"])
"""


def describe(hosts, job, index):
    """Returns the environment of a task."""
    config = {"cluster": hosts, "task": {"type": job, "index": index}}
    return {"TF_CONFIG": json.dumps(config)}


def start_python(lab, script, hosts, task):
    path = lab.folder / "script.py"
    path.write_text(script)
    argv = [lab.executable, str(path), str(lab.folder)]
    return lab.start(argv, describe(hosts, *task), f"{task[0]}-{task[1]}")


def test_after_training_all_tasks_hold_the_same_bits(lab):
    """Weights, and batch norm's averages, of a model with dropout, from Python."""
    addresses = [f"127.0.0.1:{port}" for port in lab.free_ports(3)]
    hosts = {"chief": addresses[:1], "worker": addresses[1:]}
    tasks = [("worker", 1), ("chief", 0), ("worker", 0)]
    commands = [start_python(lab, AGREEMENT, hosts, task) for task in tasks]
    assert [command.wait() for command in commands] == [0, 0, 0]
    assert "result 30" in commands[1].output
    assert "result None" in commands[0].output
    held = [np.load(lab.folder / f"{job}-{index}.npz") for job, index in tasks]
    assert len(held[0].files) > 10
    for name in held[0].files:
        for other in held[1:]:
            np.testing.assert_array_equal(held[0][name], other[name])
    # Nobody but the chief has saved.
    saved = {path.parent.name for path in lab.folder.rglob("ckpt-*.index")}
    assert saved == {"chief-0"}


UNEVEN = """
import os
import dtrain, keras, tensorflow as tf

COUNT = int(os.environ["COUNT"])

def data(ctx):
    numbers = tf.data.Dataset.range(COUNT)
    numbers = numbers.shard(ctx.num_input_pipelines, ctx.input_pipeline_id)
    return numbers.map(lambda e: ([tf.cast(e, tf.float32)], [1.0])).batch(2)

def experiment(config):
    return dtrain.Experiment(
        model=lambda: keras.Sequential([
            keras.layers.BatchNormalization(), keras.layers.Dense(1)]),
        optimizer=lambda: keras.optimizers.SGD(0.1),
        loss=keras.losses.MeanSquaredError(),
        metrics=lambda: [keras.metrics.MeanSquaredError(name="mse")],
        train_data=data,
        eval_data=data,
    )
"""


@pytest.mark.parametrize("count", [3, 9])
def test_shards_that_differ_in_length_hold_nobody_up(lab, count):
    """Four workers: one of them has no example at all, or all but one a short batch."""
    (lab.folder / "uneven.py").write_text(UNEVEN)
    run = lab.dtrain(
        "--strategy=sync",
        "--num_workers=4",
        "--experiment=uneven:experiment",
        "--train_steps=53",
        f"--result_file={lab.folder}/result.json",
        env={"COUNT": str(count)},
    )
    assert run.wait() == 0
    assert lab.result()["global_step"] == 53
    assert lab.result()["eval"]["examples"] == count
    assert not re.search("OUT_OF_RANGE|[Ee]nd of sequence", lab.logs())


def start_by_flags(lab, hosts, job, index, *flags):
    return lab.dtrain(
        "--strategy=sync",
        "--train_steps=200",
        f"--ps_hosts={','.join(hosts['ps'])}",
        f"--worker_hosts={','.join(hosts['worker'])}",
        f"--job_name={job}",
        f"--task_index={index}",
        f"--model_dir={lab.folder}/{job}-{index}",
        *flags,
        name=f"{job}-{index}",
    )


def test_a_tf1_layout_whose_tasks_come_one_after_the_other(lab):
    addresses = [f"127.0.0.1:{port}" for port in lab.free_ports(4)]
    hosts = {"ps": addresses[:1], "worker": addresses[1:]}
    ps = start_by_flags(lab, hosts, "ps", 0)
    assert ps.wait(10) == 0
    assert ps.output == "ps:0: --strategy=sync needs no ps.\n"
    # Each comes 10 s after the one before it: when that one says who is missing.
    two = start_by_flags(lab, hosts, "worker", 2)
    two.wait_for(r"^Waiting for worker:0 \(")
    chief = start_by_flags(
        lab, hosts, "worker", 0, f"--result_file={lab.folder}/result.json"
    )
    chief.wait_for(r"^Waiting for worker:1 \(\S+\)\.$")
    one = start_by_flags(lab, hosts, "worker", 1)
    assert [command.wait() for command in (one, chief, two)] == [0, 0, 0]
    assert lab.result()["cluster"] == {"worker": 3}
    assert "Evaluation at step 200" in chief.output
    for command in (one, two):
        assert command.output.endswith("the chief ended with status 0.\n")
    # Nobody left before the others were done.
    assert not re.search("[Cc]onnection reset|Socket closed|UNAVAILABLE", lab.logs())


def test_strangers_at_the_chief_s_door_are_sent_away(lab):
    addresses = [f"127.0.0.1:{port}" for port in lab.free_ports(4)]
    hosts = {"ps": addresses[:1], "worker": addresses[1:3]}
    chief = start_by_flags(lab, hosts, "worker", 0)
    address = hosts["worker"][0].split(":")
    lab.poll(lambda: lab.listening(), 20, "the chief's port")
    with (
        socket.create_connection(address),
        socket.create_connection(address) as talker,
    ):
        talker.sendall(b"GET / HTTP/1.1\r\n\r\n\x00\xff")
        other = {**hosts, "worker": [hosts["worker"][0], addresses[3]]}
        stray = start_by_flags(lab, other, "worker", 1)
        assert stray.wait(30) == 2
        assert "worker:1 was started with another cluster" in stray.output
        assert "Traceback" not in stray.output
        assert start_by_flags(lab, hosts, "worker", 1).wait() == 0
    assert chief.wait() == 0
    assert "Sent away: worker:1 was started with another cluster" in chief.output


def test_a_task_that_never_comes_is_named_by_all(lab):
    addresses = [f"127.0.0.1:{port}" for port in lab.free_ports(4)]
    hosts = {"ps": addresses[:1], "worker": addresses[1:]}
    flag = "--startup_timeout=5"
    commands = [start_by_flags(lab, hosts, "worker", i, flag) for i in (0, 2)]
    assert [command.wait(30) for command in commands] == [3, 3]
    for command in commands:
        expected = f"No answer from worker:1 ({hosts['worker'][1]}) within"
        assert expected in command.output


# Says that it has come, hears that all are there, and dies before it connects.
COMES_AND_GOES = """
import json, os, socket, time
from dtrain import version

config = json.loads(os.environ["TF_CONFIG"])
host, port = config["cluster"]["chief"][0].split(":")
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    try:
        line = socket.create_connection((host, int(port)), 1)
        break
    except OSError:
        time.sleep(0.1)
greeting = {"task": "worker:1", "cluster": config["cluster"],
            "dtrain": version.__version__}
line.sendall(json.dumps(greeting).encode() + b"\\n")
for message in line.makefile():
    if "go" in json.loads(message):
        break
"""


def test_a_task_that_is_lost_while_all_connect_is_named_at_once(lab):
    """TensorFlow would wait for five minutes, deaf to signals."""
    addresses = [f"127.0.0.1:{port}" for port in lab.free_ports(3)]
    hosts = {"chief": addresses[:1], "worker": addresses[1:]}
    commands = [
        lab.dtrain(
            "--strategy=sync",
            f"--model_dir={lab.folder}/{job}",
            "--max_restarts=0",
            env=describe(hosts, job, 0),
            name=job,
        )
        for job in ("chief", "worker")
    ]
    start_python(lab, COMES_AND_GOES, hosts, ("worker", 1))
    assert [command.wait(30) for command in commands] == [3, 3]
    for command in commands:
        assert "worker:1 was lost while the tasks were connecting" in command.output


STUCK = """
import json, os, time
from dtrain.experiments import digits_mlp

def experiment(config):
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
        print("stuck", flush=True)
        time.sleep(600)
    return digits_mlp.experiment(config)
"""


def test_a_task_that_is_lost_while_it_gets_ready_is_named_at_once(lab):
    (lab.folder / "stuck.py").write_text(STUCK)
    flags = "--experiment=stuck:experiment", "--max_restarts=0"
    run = lab.dtrain("--strategy=sync", *flags)
    log = lab.model_dir / "logs" / "worker-1.log"
    lab.poll(lambda: log.exists() and "stuck" in log.read_text(), 60, "the model")
    lab.kill(lab.tasks()["worker:1"]["pid"])
    assert run.wait(15) == 3
    assert "worker:1" in run.output
    assert "Traceback" not in run.output


USED = """
import sys
import tensorflow as tf
import dtrain
from dtrain.experiments import digits_mlp

tf.constant(1.0)
config = dtrain.RunConfig(strategy="sync", model_dir=sys.argv[1] + "/model")
try:
    dtrain.train(digits_mlp.experiment, config)
except dtrain.UsageError as error:
    print("refused:", error)
"""


def test_a_process_that_has_used_tensorflow_is_refused_before_it_meets(lab):
    addresses = [f"127.0.0.1:{port}" for port in lab.free_ports(2)]
    script = start_python(lab, USED, {"worker": addresses}, ("worker", 1))
    assert script.wait(30) == 0
    assert "refused: TensorFlow was used in this process before" in script.output


def test_a_chief_that_never_comes_is_named(lab):
    addresses = [f"127.0.0.1:{port}" for port in lab.free_ports(3)]
    hosts = {"ps": addresses[:1], "worker": addresses[1:]}
    worker = start_by_flags(lab, hosts, "worker", 1, "--startup_timeout=3")
    assert worker.wait(30) == 3
    assert f"No answer from worker:0 ({hosts['worker'][0]}) within" in worker.output


def test_tasks_that_were_started_differently_are_told_apart(lab):
    addresses = [f"127.0.0.1:{port}" for port in lab.free_ports(3)]
    hosts = {"ps": addresses[:1], "worker": addresses[1:]}
    flags = [("--batch_size=50",), ("--batch_size=60",)]
    commands = [start_by_flags(lab, hosts, "worker", i, *flags[i]) for i in range(2)]
    assert [command.wait(60) for command in commands] == [2, 2]
    for command in commands:
        assert (
            "worker:1 was started with --batch_size=60, worker:0 with --batch_size=50"
            in command.output
        )


ENDLESS = ("--strategy=sync", "--train_steps=1000000", "--num_workers=3")


@pytest.mark.parametrize("task", ["worker:0", "worker:2"])
def test_the_loss_of_a_task_ends_all_others(lab, task):
    run = lab.dtrain(*ENDLESS, "--max_restarts=0")
    run.wait_for("^step ")
    entry = lab.tasks()[task]
    lab.kill(entry["pid"])
    assert run.wait(15) == 3
    assert f"{task} (pid {entry['pid']}) was killed by SIGKILL" in run.output
    assert "Traceback" not in run.output
    others = {t: e["exit_status"] for t, e in lab.tasks().items() if t != task}
    assert set(others.values()) == {3}


def test_a_task_that_answers_no_more_is_named(lab):
    """It hangs, or its machine does: its heartbeats are missed."""
    flags = "--heartbeat_timeout=10", "--max_restarts=0"
    run = lab.dtrain(*ENDLESS, *flags)
    run.wait_for("^step ")
    lab.kill(lab.tasks()["worker:2"]["pid"], signal.SIGSTOP)
    assert run.wait(40) == 3
    assert "The connection to worker:2 is lost" in run.output


def test_a_signal_to_any_task_saves_and_ends_all(lab):
    run = lab.dtrain(*ENDLESS, "--checkpoint_every=0")
    run.wait_for("^step ")
    lab.kill(lab.tasks()["worker:1"]["pid"], signal.SIGTERM)
    assert run.wait(15) == 143
    assert re.search(r"^Saved .*/ckpt-\d+ before stopping", run.output, re.M)
    assert {e["exit_status"] for e in lab.tasks().values()} == {143}


# What goes wrong on the second worker alone, while the others wait for it.
FAILING = """
import json, os
import dtrain, keras, tensorflow as tf

def bad(x):
    return x + tf.cast(tf.strings.length(tf.io.read_file("/no/such/file")), tf.float32)

def data(ctx):
    batch = tf.data.Dataset.from_tensors((tf.ones([4, 3]), tf.ones([4, 1])))
    later = batch.map(lambda x, y: (bad(x), y)) if ctx.input_pipeline_id == 1 else batch
    return batch.repeat(100).concatenate(later.repeat())

def make(data, early):
    def experiment(config):
        task = json.loads(os.environ["TF_CONFIG"])["task"]
        if early and task["index"] == 1:
            raise ValueError("a library is missing here")
        return dtrain.Experiment(
            model=lambda: keras.Sequential([keras.layers.Dense(1)]),
            optimizer=lambda: keras.optimizers.SGD(0.01),
            loss=keras.losses.MeanSquaredError(),
            train_data=data,
        )
    return experiment

early = make(data, True)
late = make(data, False)
"""


@pytest.mark.parametrize(
    ("name", "status", "cause"),
    [
        ("early", 2, "worker:1 ended the run: .*a library is missing here .*line 17"),
        ("late", 4, "worker:1 ended the run: .*after 400 examples: /no/such/file; No"),
    ],
)
def test_the_first_cause_is_told_wherever_it_was(lab, name, status, cause):
    (lab.folder / "my_model.py").write_text(FAILING)
    run = lab.dtrain(
        "--strategy=sync", f"--experiment=my_model:{name}", "--train_steps=1000000"
    )
    assert run.wait(60) == status
    assert re.search(cause, run.output)
    assert "Traceback" not in run.output
    assert {e["exit_status"] for e in lab.tasks().values()} == {status}


def test_mnist_mlp_reaches_its_accuracy_with_two_workers(lab):
    run = lab.dtrain(
        "--strategy=sync",
        "--experiment=mnist_mlp",
        "--train_steps=2000",
        f"--result_file={lab.folder}/result.json",
    )
    assert run.wait() == 0
    result = lab.result()
    assert (result["batch_size"], result["replicas"]) == (100, 2)
    assert result["eval"]["accuracy"] >= 0.86
    assert result["eval"]["examples"] == 10000


def test_bfloat16_on_the_wire_trains_as_well(lab):
    run = lab.dtrain(
        "--strategy=sync",
        "--gradient_dtype=bfloat16",
        "--accumulate_steps=2",
        "--train_steps=300",
        f"--result_file={lab.folder}/result.json",
    )
    assert run.wait() == 0
    assert "gradients travel as bfloat16" in run.output
    result = lab.result()
    assert result["accumulate_steps"] == 2
    assert result["examples_seen"] == 300 * 2 * 2 * 32
    assert result["eval"]["accuracy"] >= 0.95
