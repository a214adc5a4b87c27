"""How fast steps get their data: python benchmarks/input_speed.py

`mnist_mlp` under `ps`, 2 workers, batches of 100, in steps per second:

    traced      a graph pipeline that the chief traces and workers run: no Python on
                a worker, and TensorFlow's fastest way (dtrain does not use it)
    pipeline    the same pipeline, made by each worker, as dtrain does
    arrays      the same data as NumPy arrays in each worker's memory

and a generator that needs 20 ms a batch in Python, with 1 and with 3 workers. Medians
of interleaved rounds, on a machine that does nothing else. Needs Fashion-MNIST
(apt-get install dataset-fashion-mnist).
"""

import dataclasses
import gzip
import time

import interleaved

import dtrain
from dtrain.experiments import mnist_mlp

QUIET = ("--checkpoint_every=0", "--summary_every=0", "--log_every=0")
RUNS = {
    "traced": ("input_speed:traced", *QUIET, "--train_steps=5000"),
    "pipeline": ("input_speed:pipeline", *QUIET, "--train_steps=5000"),
    "arrays": ("input_speed:arrays", *QUIET, "--train_steps=5000"),
    "generator, 1 worker": (
        *("input_speed:generator", *QUIET),
        *("--train_steps=400", "--num_workers=1"),
    ),
    "generator, 3 workers": (
        *("input_speed:generator", *QUIET),
        *("--train_steps=1200", "--num_workers=3"),
    ),
}
RATIOS = [
    ("arrays", "traced"),
    ("pipeline", "traced"),
    ("generator, 3 workers", "generator, 1 worker"),
]

pipeline = mnist_mlp.experiment


@dtrain.defaults(train_steps=5000, batch_size=100)
def traced(config):
    """Puts a function that the chief traces in the place of the workers' own data."""
    import tensorflow as tf

    from dtrain.input import feed
    from dtrain.strategies import worker_inputs

    what = mnist_mlp.experiment(config)

    def function(self, place, taken):
        @tf.function(autograph=False)
        def open_batches():
            index = tf.distribute.coordinator.experimental_get_current_worker_index()
            context = dtrain.InputContext(self._num_workers, tf.cast(index, tf.int64))
            data = what.train_data(context)
            marked = tf.data.Dataset.zip((feed.marks(1), data))
            return marked.prefetch(tf.data.AUTOTUNE)

        return open_batches.get_concrete_function()

    worker_inputs.WorkerInputs.function = function
    return what


@dtrain.defaults(train_steps=5000, batch_size=100)
def arrays(config):
    import numpy as np

    from dtrain.data import mnist

    train, _ = mnist.find(config.data_dir)

    def read(path, header):
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
            return np.frombuffer(file.read(), np.uint8, offset=header)

    def train_data():
        images = read(train.images, 16).reshape(-1, mnist.NUM_PIXELS)
        return images / np.float32(255), read(train.labels, 8).astype(np.int64)

    return dataclasses.replace(mnist_mlp.experiment(config), train_data=train_data)


@dtrain.defaults(batch_size=10)
def generator(config):
    import keras
    import numpy as np

    def train_data(ctx):
        while True:
            time.sleep(0.02)
            yield np.zeros((10, 4), "float32"), np.zeros(10, "int64")

    return dtrain.Experiment(
        model=lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]),
        optimizer=lambda: keras.optimizers.SGD(0.1),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        train_data=train_data,
    )


if __name__ == "__main__":
    interleaved.main(__doc__, RUNS, RATIOS)
