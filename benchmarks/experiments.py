"""What dtrain trains in the comparisons, beside the experiments that come with it."""

import dataclasses
import gzip
import time

import dtrain
from benchmarks.peers import data
from dtrain.experiments import mnist_mlp

pipeline = mnist_mlp.experiment


@dtrain.defaults(train_steps=100, batch_size=data.BATCH_SIZE)
def wide_mlp(config):
    """784-2048-2048-1024-10: 7.9 million parameters, 30 MiB a step and direction."""
    from dtrain.models import mlp

    return dataclasses.replace(
        mnist_mlp.experiment(config),
        model=lambda: mlp.mlp(
            data.NUM_PIXELS, data.WIDTHS["wide_mlp"], data.NUM_CLASSES
        ),
    )


@dtrain.defaults(**mnist_mlp.experiment.dtrain_defaults)
def bare(config):
    """Leaves out all that the chief hangs on the session by itself.

    No callback is left, not even the one that looks for NaN.
    """
    from dtrain import chief

    chief._make_callbacks = lambda *_: []
    return mnist_mlp.experiment(config)


@dtrain.defaults(**mnist_mlp.experiment.dtrain_defaults)
def traced(config):
    """Puts a function that the chief traces in the place of the workers' own data.

    So there is no Python on a worker: TensorFlow's fastest way, which dtrain does
    not use.
    """
    import tensorflow as tf

    from dtrain.input import feed
    from dtrain.strategies import worker_inputs

    what = mnist_mlp.experiment(config)

    def function(self, place, taken):
        @tf.function(autograph=False)
        def open_batches():
            index = tf.distribute.coordinator.experimental_get_current_worker_index()
            context = dtrain.InputContext(self._num_workers, tf.cast(index, tf.int64))
            batches = what.train_data(context)
            marked = tf.data.Dataset.zip((feed.marks(1), batches))
            return marked.prefetch(tf.data.AUTOTUNE)

        return open_batches.get_concrete_function()

    worker_inputs.WorkerInputs.function = function
    return what


@dtrain.defaults(**mnist_mlp.experiment.dtrain_defaults)
def arrays(config):
    """Gives the same data as NumPy arrays in each worker's memory."""
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
    """Needs 20 ms a batch, in Python."""
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
