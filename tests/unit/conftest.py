"""What several unit tests share."""

import gzip
import struct
import subprocess
import sys

import numpy as np
import pytest

# What TensorFlow and Keras have to say of themselves, where nothing can be done.
_WARNINGS = (
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning",
    "ignore:Even though the `tf.config.experimental_run_functions_eagerly`:UserWarning",
)


def pytest_configure(config):
    for line in _WARNINGS:
        config.addinivalue_line("filterwarnings", line)


class Clock:
    """A clock that stands still until it is told how much time has passed."""

    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time

    def advance(self, seconds):
        self.time += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def run_python():
    """A function that runs Python source in a process of its own."""

    def run(source, *args, **kwargs):
        return subprocess.run(
            [sys.executable, "-c", source, *map(str, args)],
            capture_output=True,
            text=True,
            timeout=60,
            **kwargs,
        )

    return run


@pytest.fixture
def write_idx():
    """A function that writes an array as an IDX file, gzipped if so named."""

    def write(path, values, magic=None):
        values = np.asarray(values, np.uint8)
        header = [magic or 0x0800 + values.ndim, *values.shape]
        content = struct.pack(f">{len(header)}I", *header) + values.tobytes()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        return path

    return write


@pytest.fixture
def mnist_folder(tmp_path, write_idx):
    """A folder with 30 images to train on and 20 to test on, half of it gzipped.

    All pixels of training image i are i, of test image i 100 + i; labels are i % 10.
    """

    def images(first, count):
        return np.broadcast_to(
            np.arange(first, first + count)[:, None, None], (count, 28, 28)
        )

    write_idx(tmp_path / "train-images-idx3-ubyte.gz", images(0, 30))
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", np.arange(30) % 10)
    write_idx(tmp_path / "t10k-images-idx3-ubyte", images(100, 20))
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.arange(20) % 10)
    return tmp_path
