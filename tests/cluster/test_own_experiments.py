"""Anybody's Keras model and data, from a file or a script outside the package."""

import re

import numpy as np
import pytest
import tensorflow as tf

# Every example leaves a file that says which worker read it, in which process.
READERS = """
import dtrain, keras, tensorflow as tf

FOLDER = {folder!r}

def leave_trace(worker, example):
    # The first thread of a process has the process's own number.
    tids = tf.io.matching_files("/proc/self/task/*")
    numbers = [tf.strings.as_string(worker), tf.strings.as_string(example)]
    path = tf.strings.join([FOLDER, "/", tf.strings.join(numbers, "-")])
    written = tf.io.write_file(path, tf.strings.reduce_join(tids, separator=" "))
    with tf.control_dependencies([written]):
        return tf.identity(example)

def train_data(ctx):
    data = tf.data.Dataset.range(60)
    data = data.shard(ctx.num_input_pipelines, ctx.input_pipeline_id)
    data = data.map(lambda e: leave_trace(ctx.input_pipeline_id, e))
    return data.map(lambda e: (tf.cast([e], tf.float32) / 60.0, 0.0)).batch(4)

@dtrain.defaults(train_steps=60, batch_size=4)
def experiment(config):
    print("hello from the experiment")
    return dtrain.Experiment(
        model=lambda: keras.Sequential([keras.layers.Dense(1)]),
        optimizer=lambda: keras.optimizers.SGD(0.01),
        loss=lambda y, y_pred: tf.square(y - y_pred),
        train_data=train_data,
    )
"""


def test_each_worker_reads_its_own_shard_in_its_own_process(lab):
    traces = lab.folder / "traces"
    traces.mkdir()
    (lab.folder / "my_model.py").write_text(READERS.format(folder=str(traces)))
    run = lab.dtrain(
        "--experiment=my_model:experiment",
        "--num_workers=3",
        "--steps_per_loop=2",
        f"--result_file={lab.folder}/result.json",
    )
    assert run.wait() == 0
    assert "hello from the experiment" in run.output
    result = lab.result()
    assert result["global_step"] == 60
    assert result["eval"] is None
    tasks = lab.tasks()
    by_worker = {}
    for path in traces.iterdir():
        worker, example = map(int, path.name.split("-"))
        by_worker.setdefault(worker, []).append(example)
        pids = set(map(int, re.findall(r"/proc/self/task/(\d+)", path.read_text())))
        assert tasks[f"worker:{worker}"]["pid"] in pids
    # The union is the whole set, and no example belongs to two workers.
    assert sorted(e for found in by_worker.values() for e in found) == list(range(60))
    assert {worker: len(examples) for worker, examples in by_worker.items()} == {
        0: 20,
        1: 20,
        2: 20,
    }


# One weight, whose gradient is 1 in every step: step k takes schedule(k) = k off it.
# The sum shows whether each ticket was used exactly once and every update arrived.
TICKETS = """
import sys
import dtrain, keras, tensorflow as tf

STEPS = 5700

class Step(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return tf.cast(step, tf.float32)
    def get_config(self):
        return {{}}

class Model(keras.Model):
    def build(self, shape):
        self.w = self.add_weight(shape=(), initializer="zeros", name="w")
    def call(self, x):
        return self.w + 0.0 * x

def data():
    return tf.data.Dataset.range(12).map(lambda e: ([0.0], [0.0])).batch(2)

def experiment(config):
    return dtrain.Experiment(
        model=Model,
        optimizer=lambda: keras.optimizers.SGD(Step()),
        loss=lambda y, y_pred: y_pred[:, 0],
        train_data=data,
        eval_data=data,
        metrics=lambda: [keras.metrics.MeanSquaredError(name="mse")],
    )

result = dtrain.train(experiment, dtrain.RunConfig(
    num_workers=3, train_steps=STEPS, steps_per_loop=7, checkpoint_every=0,
    model_dir={model_dir!r}))
assert result["global_step"] == STEPS, result
assert result["experiment"] == "experiment"
print("trained", result["checkpoint"])
"""


def test_three_asynchronous_workers_use_each_step_of_a_schedule_once(lab):
    run = lab.python(TICKETS.format(model_dir=str(lab.model_dir)))
    assert run.wait() == 0
    assert run.output.count("trained") == 1  # the script ran once, not in every task
    assert f"trained {lab.model_dir}/ckpt-5700" in run.output
    reader = tf.train.load_checkpoint(str(lab.model_dir / "ckpt-5700"))
    names = reader.get_variable_to_shape_map()
    (weight,) = [n for n in names if n.startswith("model/w/")]
    # Exact: all sums are whole numbers below 2**24. As many steps as that allows,
    # because workers seldom take two tickets at the same moment.
    assert reader.get_tensor(weight) == -sum(range(5700))
    (step,) = [n for n in names if n.startswith("global_step/")]
    assert reader.get_tensor(step) == 5700
    (iterations,) = [n for n in names if "optimizer/_iterations/" in n]
    assert reader.get_tensor(iterations) == 5700
    assert np.ndim(reader.get_tensor(weight)) == 0


FAILING = """
import dtrain, keras, tensorflow as tf

class Broken(keras.layers.Layer):
    def call(self, x):
        raise RuntimeError("the user's own mistake")

def make(model, data=None, learning_rate=0.1):
    def experiment(config):
        return dtrain.Experiment(
            model=model,
            optimizer=lambda: keras.optimizers.SGD(learning_rate),
            loss=keras.losses.MeanSquaredError(),
            train_data=data or good_data,
        )
    return experiment

def good_data():
    return tf.data.Dataset.from_tensors((tf.ones([4, 3]), tf.ones([4, 1]))).repeat()

def missing_file():
    return tf.data.TextLineDataset("/no/such/file.csv").map(
        lambda line: (tf.ones([3]), tf.ones([1]))).batch(4)

def empty():
    return good_data().take(0)

def dense():
    return keras.Sequential([keras.layers.Dense(1)])

broken_model = make(lambda: keras.Sequential([keras.layers.Dense(1), Broken()]))
nan = make(dense, learning_rate=1e30)
no_file = make(dense, missing_file)
no_data = make(dense, empty)
"""


# All of them in one process; under `ps` those that go another way there.
MISTAKES = {
    "broken_model": r"the user's own mistake.*my_model.py, line 6",
    "nan": r"The loss is no number in the step to global step 2\.",
    "no_file": r"/no/such/file.csv; No such file.*each worker, on its own",
    "no_data": r"train_data=...\) gives no batch",
}
RUNS = [("local", name) for name in MISTAKES]
RUNS += [("ps", "broken_model"), ("ps", "no_file")]


@pytest.mark.parametrize(("strategy", "name"), RUNS)
def test_what_the_user_got_wrong_ends_every_task_with_status_4(lab, strategy, name):
    (lab.folder / "my_model.py").write_text(FAILING)
    run = lab.dtrain(f"--strategy={strategy}", f"--experiment=my_model:{name}")
    assert run.wait() == 4
    assert re.search(MISTAKES[name], run.output, re.DOTALL)
    assert "Traceback" not in run.output
    if strategy == "ps":
        assert {t["exit_status"] for t in lab.tasks().values()} == {4}


OUTSIDE = """
import dtrain, keras, tensorflow as tf

def experiment(config):
    data = tf.data.Dataset.from_tensors((tf.ones([4, 3]), tf.ones([4, 1])))
    return dtrain.Experiment(
        model=lambda: keras.Sequential([keras.layers.Dense(1)]),
        optimizer=lambda: keras.optimizers.SGD(0.01),
        loss=keras.losses.MeanSquaredError(),
        train_data=lambda: data,
    )
"""


def test_a_data_set_made_outside_its_function_is_each_process_s_own(lab):
    (lab.folder / "my_model.py").write_text(OUTSIDE)
    run = lab.dtrain("--experiment=my_model:experiment", "--train_steps=40")
    assert run.wait(60) == 0


# Strings through a lookup table, free sizes, a vector of a metric, flags of its own.
UNUSUAL = """
import dtrain, keras, tensorflow as tf
from absl import flags

flags.DEFINE_integer("batch_size", 1, "as TF1 scripts have it")

def data():
    words = tf.data.Dataset.from_tensor_slices(["a", "b", "a", "c", "b", "a", "c"])
    label = lambda w: tf.one_hot(tf.cast(w == "a", tf.int32), 2)
    return words.map(lambda w: (w[tf.newaxis], label(w))).batch(3)

def experiment(config):
    def model():
        lookup = keras.layers.StringLookup(vocabulary=["a", "b", "c"])
        return keras.Sequential([
            keras.layers.Input((1,), dtype="string"), lookup,
            keras.layers.Embedding(4, 8), keras.layers.Flatten(),
            keras.layers.Dense(2, activation="softmax")])
    return dtrain.Experiment(
        model=model,
        optimizer=lambda: keras.optimizers.Adam(0.05),
        loss=keras.losses.CategoricalCrossentropy(),
        metrics=lambda: [keras.metrics.F1Score(name="f1")],
        train_data=data,
        eval_data=data,
    )
"""


def test_lookup_tables_free_sizes_and_metrics_of_several_numbers(lab):
    (lab.folder / "my_model.py").write_text(UNUSUAL)
    flags = ("--train_steps=100", f"--result_file={lab.folder}/result.json")
    run = lab.dtrain("--experiment=my_model:experiment", *flags)
    assert run.wait(60) == 0
    result = lab.result()
    assert result["eval"]["examples"] == 7
    assert result["eval"]["f1_0"] == result["eval"]["f1_1"] == 1.0
