"""Data of every kind that a data function may return, and what pipelines read of it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from dtrain.input.feed import Feed


class Pages(keras.utils.PyDataset):
    """Batches of one example, which is the batch's index; notes what it is told."""

    def __init__(self, count, **options):
        super().__init__(**options)
        self.count = count
        self.log = []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.log.append(index)
        return column([index]), column([index])

    def on_epoch_end(self):
        self.log.append("end")


def column(values):
    return np.array(values, np.float32)[:, None]


def arrays(count):
    return lambda: (column(range(count)), column(range(count)))


def data_set(count):
    def train_data():
        data = tf.data.Dataset.from_tensor_slices(column(range(count)))
        return data.shuffle(count).batch(1).map(lambda x: (x, x))

    return train_data


def generator(count):
    def train_data():
        for number in range(count):
            yield column([number]), column([number])

    return train_data


def dealt(count):
    def train_data(ctx):
        batches = ctx.deal(count).batch(1)
        return batches.map(lambda x: (tf.cast(x[:, None], tf.float32), x[:, None]))

    return train_data


# Functions of the number of examples, each of which is a batch and has its number.
KINDS = {
    "arrays": arrays,
    "PyDataset": lambda count: lambda: Pages(count),
    "Dataset": data_set,
    "generator": generator,
    "deal": dealt,
}


@pytest.fixture(params=KINDS)
def kind(request):
    """A function that makes `train_data` of so many numbers, of every kind in turn."""
    return KINDS[request.param]


@pytest.fixture(params=["arrays", "PyDataset", "Dataset", "deal"])
def kind_with_place(request):
    """Likewise; of every kind that can be entered in the middle."""
    return KINDS[request.param]


@pytest.fixture(params=["arrays", "PyDataset", "Dataset", "generator"])
def kind_without_context(request):
    """Likewise; of every kind that is not told which pipeline it is."""
    return KINDS[request.param]


@pytest.fixture(params=["arrays", "PyDataset", "deal"])
def numbered(request):
    """Likewise; of every kind that dtrain shuffles."""
    return KINDS[request.param]


@pytest.fixture
def make_pages():
    return Pages


@pytest.fixture
def batches_of():
    """A function that returns (begun, batch) of a share, as NumPy has them."""

    def batches_of(train_data, share, most=None, batch_size=1):
        data = Feed(train_data, share, batch_size).batches(share)
        data = data if most is None else data.take(most)
        return [(int(begun), batch) for begun, batch in data.as_numpy_iterator()]

    return batches_of


@pytest.fixture
def read(batches_of):
    """A function that returns the examples of a share, one after the other."""

    def read(*args, **options):
        parts = [batch[0].ravel() for _, batch in batches_of(*args, **options)]
        return [int(value) for value in np.concatenate(parts)] if parts else []

    return read
