"""Data that each worker's own Python makes, in its own process."""

import collections
import re
import signal

import pytest

# Each function notes what is read, by which process, in lines of a file.
READERS = """
import os, time
import dtrain, keras, numpy as np, tensorflow as tf

COUNT = 600
X = np.random.default_rng(0).normal(size=(COUNT, 4)).astype("float32")
Y = (X.sum(1) > 0).astype("int64")

def note(*what):
    with open(os.environ["NOTES"], "a") as file:
        file.write(" ".join(map(str, (os.getpid(), *what))) + "\\n")

def experiment_on(train_data):
    @dtrain.defaults(train_steps=400, batch_size=10)
    def experiment(config):
        return dtrain.Experiment(
            model=lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]),
            optimizer=lambda: keras.optimizers.SGD(0.1),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            train_data=train_data,
        )
    return experiment

def generate(ctx):
    note("context", ctx.input_pipeline_id, ctx.num_input_pipelines)
    mine = range(ctx.input_pipeline_id, COUNT, ctx.num_input_pipelines)
    for start in range(0, len(mine), 10):
        rows = list(mine[start : start + 10])
        for row in rows:
            note("row", row)
        yield X[rows], Y[rows]

def read(row):
    time.sleep(0.0005)
    note("row", row)
    return np.int64(row)

def deal(ctx):
    note("context", ctx.input_pipeline_id, ctx.num_input_pipelines)
    rows = ctx.deal(COUNT)
    rows = rows.map(lambda row: tf.numpy_function(read, [row], tf.int64))
    rows = rows.map(lambda row: tf.ensure_shape(row, []))
    return rows.map(lambda row: (tf.gather(X, row), tf.gather(Y, row))).batch(10)

def take_every_nth(ctx):
    rows = tf.data.Dataset.range(COUNT)
    rows = rows.shard(ctx.num_input_pipelines, ctx.input_pipeline_id)
    rows = rows.map(lambda row: tf.numpy_function(read, [row], tf.int64))
    rows = rows.map(lambda row: tf.ensure_shape(row, []))
    return rows.map(lambda row: (tf.gather(X, row), tf.gather(Y, row))).batch(10)

def fail(ctx):
    for number in range(1000):
        if number == 37 and ctx.input_pipeline_id == 1:
            raise ValueError("row 370 is unreadable")
        yield X[:10], Y[:10]

def change(ctx):
    for number in range(1000):
        width = 5 if number == 20 and ctx.input_pipeline_id == 1 else 4
        yield np.zeros((10, width), "float32"), Y[:10]

def nothing(ctx):
    count = 0 if ctx.input_pipeline_id == 1 else COUNT
    data = tf.data.Dataset.from_tensor_slices((X, Y)).enumerate()
    return data.filter(lambda i, _: i < count).map(lambda _, pair: pair).batch(10)

def refuse(ctx):
    if ctx.input_pipeline_id == 1:
        raise OSError("disk 1 is not there")
    return X, Y

generator, dealt, static = map(experiment_on, (generate, deal, take_every_nth))
failing, changing, empty, refusing = map(experiment_on, (fail, change, nothing, refuse))
once = experiment_on(lambda: iter([(X[:10], Y[:10])]))
few = experiment_on(lambda: (X[:2], Y[:2]))
"""


@pytest.fixture
def start(lab):
    """A function that starts a command on one of these experiments."""
    (lab.folder / "readers.py").write_text(READERS)

    def start(experiment, *flags, name="run"):
        return lab.dtrain(
            f"--experiment=readers:{experiment}",
            f"--result_file={lab.folder}/result.json",
            *flags,
            env={"NOTES": str(lab.folder / "notes")},
            name=name,
        )

    return start


def notes(lab, kind):
    """Returns what was noted of one kind: (pid, further words)."""
    lines = [line.split() for line in (lab.folder / "notes").read_text().splitlines()]
    return [(int(pid), *map(int, rest)) for pid, name, *rest in lines if name == kind]


def rows_by_pid(lab):
    found = collections.defaultdict(list)
    for pid, row in notes(lab, "row"):
        found[pid].append(row)
    return found


# Who reads what.


@pytest.mark.parametrize(
    ("experiment", "sharding"), [("generator", "static"), ("dealt", "dynamic")]
)
def test_workers_read_an_epoch_once_each_in_its_own_process(
    experiment, sharding, lab, start
):
    run = start(
        experiment, "--num_workers=3", "--epochs=2", f"--data_sharding={sharding}"
    )
    assert run.wait() == 0
    pids = {task: entry["pid"] for task, entry in lab.tasks().items()}
    contexts = {context for context in notes(lab, "context")}
    assert contexts == {(pids[f"worker:{i}"], i, 3) for i in range(3)}
    rows = rows_by_pid(lab)
    assert rows.keys() <= {pids[f"worker:{i}"] for i in range(3)}
    counts = collections.Counter(row for found in rows.values() for row in found)
    assert counts == dict.fromkeys(range(600), 2)
    result = lab.result()
    assert result["epochs"] == 2
    assert result["train_steps"] is None
    # Under "dynamic" the last batch of each worker may be smaller.
    assert 120 <= result["global_step"] <= 122
    assert result["repeated_steps"] == 0


def test_without_sharding_every_worker_reads_all(lab, start):
    run = start("dealt", "--epochs=1", "--data_sharding=off")
    assert run.wait() == 0
    orders = list(rows_by_pid(lab).values())
    assert [sorted(order) for order in orders] == [list(range(600))] * 2
    assert orders[0] != orders[1]
    assert lab.result()["global_step"] == 120


# What goes wrong is named, and never hangs.


@pytest.mark.parametrize(
    ("experiment", "message"),
    [
        (
            "failing",
            r"worker:1: train_data failed after 370 examples: ValueError: row 370 is"
            r" unreadable \(.*readers.py, line \d+\)\.\nTraceback \(most recent call"
            r" last\):\n  File \".*readers.py\", line \d+, in fail\n    raise Val",
        ),
        (
            "changing",
            r"worker:1: train_data failed after 200 examples: Batch 21 of train_data "
            r"has x float32 \(10, 5\), but the batches before it had float32 \(any",
        ),
        ("empty", "train_data gives no batch: there are no examples in it, or in this"),
        (
            "refusing",
            r"worker:1: train_data failed: OSError: disk 1 is not there \(.*readers.py",
        ),
    ],
)
def test_a_pipeline_that_fails_ends_the_run(experiment, message, lab, start):
    run = start(experiment)
    assert run.wait(60) == 4
    assert re.search(message, run.output), run.output
    assert "tensorflow/python" not in run.output
    assert {t["exit_status"] for t in lab.tasks().values()} == {4}


def test_data_that_ends_early_or_has_fewer_batches_than_workers_is_repeated(lab, start):
    for experiment in ("once", "few"):
        assert start(experiment, "--num_workers=3", name=experiment).wait() == 0
        assert lab.result()["global_step"] == 400
        lab.check_nothing_left()
        for path in lab.model_dir.glob("ckpt*"):
            path.unlink()
        (lab.model_dir / "checkpoint").unlink()


# A worker that is killed, and started again.


@pytest.mark.parametrize(
    ("experiment", "sharding"), [("static", "static"), ("dealt", "dynamic")]
)
def test_the_input_of_a_worker_comes_back_with_it(experiment, sharding, lab, start):
    ports = lab.free_ports(3)
    hosts = [
        f"--ps_hosts=127.0.0.1:{ports[0]}",
        f"--worker_hosts=127.0.0.1:{ports[1]},127.0.0.1:{ports[2]}",
        f"--data_sharding={sharding}",
        "--train_steps=1000000",
        "--steps_per_loop=5",
        "--log_every=20",
    ]

    def task(job, index, name=None):
        name = name or f"{job}-{index}"
        own = f"--job_name={job}", f"--task_index={index}"
        folder = f"--model_dir={lab.folder}/{name}"
        return start(experiment, *hosts, *own, folder, name=name)

    commands = [task("ps", 0), task("worker", 0)]
    worker = task("worker", 1)
    # Both have trained: who has taken no batch has none to come back to.
    commands[1].wait_for(r"^step .* input \d+%/\d+%")
    assert worker.process.pid in rows_by_pid(lab)
    lab.kill(worker.process.pid)
    worker.process.wait()
    again = task("worker", 1, "again")
    lab.poll(
        lambda: len(rows_by_pid(lab).get(again.process.pid, [])) > 50,
        60,
        "the input of the worker that was started again",
    )
    commands[1].process.send_signal(signal.SIGTERM)
    commands.append(again)
    assert [command.wait() for command in commands] == [143] * 3
    assert "worker:1 is back" in again.output
    rows = rows_by_pid(lab)
    if sharding == "static":  # its own part, from the start of a pass
        part = list(range(1, 600, 2))
        assert rows[worker.process.pid][:300] == part[: len(rows[worker.process.pid])]
        assert rows[again.process.pid][:50] == part[:50]
    else:  # the numbers go on: in no pass is a row read twice
        counts = collections.Counter(row for found in rows.values() for row in found)
        total = sum(counts.values())
        assert max(counts.values()) <= -(-total // 600) + 1
        order = [row for _, row in notes(lab, "row")]
        assert len(set(order[:400])) == 400


# Large arrays.

LARGE = """
import os, sys
import dtrain, keras, numpy as np, psutil

count, where = int(sys.argv[1]) * 1024, sys.argv[2]
x = np.ones((count, 256), "float32") if where == "script" else None
y = np.zeros(count, "int32")

class Memory(dtrain.Callback):
    def on_end(self, session):
        print("MEMORY", psutil.Process().memory_info().rss >> 20, "MiB", flush=True)

def experiment(config):
    def train_data():
        import tensorflow as tf
        rows = np.ones((count, 256), "float32") if x is None else x
        if where == "data_set":
            return tf.data.Dataset.from_tensor_slices((rows, y)).batch(32)
        return rows, y
    return dtrain.Experiment(
        model=lambda: keras.Sequential([keras.Input((256,)), keras.layers.Dense(2)]),
        optimizer=lambda: keras.optimizers.SGD(0.1),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        train_data=train_data,
        callbacks=lambda: [Memory()],
    )

if __name__ == "__main__":
    config = dtrain.RunConfig(
        train_steps=100, num_workers=int(sys.argv[3]), model_dir=sys.argv[4])
    dtrain.train(experiment, config)
"""


def test_large_arrays_stay_with_the_workers(lab):
    """300 MiB, as the script's own and as a data set's; and 3 GiB."""
    path = lab.folder / "large.py"
    path.write_text(LARGE)
    memory = {}
    for size, where, workers in [
        (1, "train_data", 1),
        (300, "script", 2),
        (300, "data_set", 2),
        (3 * 1024, "train_data", 1),
    ]:
        name = f"{where}-{size}"
        lab.model_dir = lab.folder / name
        arguments = map(str, (path, size, where, workers, lab.model_dir))
        run = lab.start([lab.executable, *arguments], None, name)
        assert run.wait(120) == 0
        memory[name] = int(re.search(r"^MEMORY (\d+) MiB", run.output, re.M)[1])
        lab.check_nothing_left()
        assert not list(lab.model_dir.glob("*.npy"))
    small = memory.pop("train_data-1")
    assert max(memory.values()) < small + 60, (small, memory)


# From Python: a script's own function, whose data every task makes.

SCRIPT = """
import sys, time
import dtrain, keras, numpy as np

def experiment(config):
    def train_data(ctx):
        while True:
            time.sleep(0.005)
            yield np.zeros((10, 4), "float32"), np.zeros(10, "int64")

    return dtrain.Experiment(
        model=lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]),
        optimizer=lambda: keras.optimizers.SGD(0.1),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        train_data=train_data,
    )

if __name__ == "__main__":
    job, index, ps, first, second, folder = sys.argv[1:]
    result = dtrain.train(experiment, dtrain.RunConfig(
        cluster="flags", ps_hosts=ps, worker_hosts=first + "," + second, job_name=job,
        task_index=int(index), train_steps=100, model_dir=folder + "/" + job + index))
    print("RETURNED", result and result["global_step"])
"""


def test_a_script_s_function_makes_data_in_every_task_and_scripts_end(lab):
    """An endless generator is still at work when each of them returns."""
    path = lab.folder / "script.py"
    path.write_text(SCRIPT)
    hosts = [f"127.0.0.1:{port}" for port in lab.free_ports(3)]
    commands = {}
    for job, index in [("ps", "0"), ("worker", "1"), ("worker", "0")]:
        argv = [lab.executable, str(path), job, index, *hosts, str(lab.folder)]
        commands[job + index] = lab.start(argv, None, job + index)
    assert [command.wait(90) for command in commands.values()] == [0, 0, 0]
    assert "RETURNED 100" in commands["worker0"].output
    assert "RETURNED None" in commands["worker1"].output
    assert "RETURNED None" in commands["ps0"].output
