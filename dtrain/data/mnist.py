"""MNIST and its drop-in successors such as Fashion-MNIST: four IDX files."""

import dataclasses
import os

import tensorflow as tf

from dtrain import errors
from dtrain.data import idx, pipeline
from dtrain.input.context import InputContext

NUM_PIXELS = 28 * 28
NUM_CLASSES = 10

# Where Debian's package dataset-fashion-mnist puts its files.
DEBIAN_FOLDER = "/usr/share/datasets/fashion-mnist"

TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"
TEST_IMAGES = "t10k-images-idx3-ubyte"
TEST_LABELS = "t10k-labels-idx1-ubyte"
NAMES = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)


@dataclasses.dataclass(frozen=True)
class Split:
    """The checked files of one part of the data.

    Attributes:
        images: path of the images, absolute.
        labels: path of the labels, absolute.
        count: how many of each there are.
    """

    images: str
    labels: str
    count: int


def find(data_dir: str | None) -> tuple[Split, Split]:
    """Finds and checks the four files.

    Each may be gzipped (`.gz`) or not, and have a `.` in place of the `-` before
    `idx`.

    Args:
        data_dir: the folder; `None` for Debian's Fashion-MNIST.

    Returns:
        The training and the test part.

    Raises:
        UsageError: a file is missing, damaged, or not what its name says.
    """
    folder = os.path.abspath(os.path.expanduser(data_dir or DEBIAN_FOLDER))
    paths = {name: _locate(folder, name) for name in NAMES}
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        raise errors.UsageError(_missing_message(data_dir, folder, missing))
    return (
        _check(paths[TRAIN_IMAGES], paths[TRAIN_LABELS]),
        _check(paths[TEST_IMAGES], paths[TEST_LABELS]),
    )


def train_batches(
    split: Split, ctx: InputContext, *, batch_size: int, seed: int
) -> tf.data.Dataset:
    """Returns endless shuffled batches.

    A pipeline unzips the files once and keeps its shard in memory, as numbers: 3 KB an
    image.

    Args:
        split: what to read.
        ctx: which shard of it to read.
        batch_size: examples in a batch.
        seed: of the order.

    Returns:
        Batches of `x`, float32 (batch_size, 784) in [0, 1], and `y`, int64
        (batch_size,), the class.
    """
    return pipeline.train_batches(
        _examples(split),
        ctx,
        count=split.count,
        batch_size=batch_size,
        seed=seed,
        decode=_decode,
    )


def eval_batches(
    split: Split, ctx: InputContext, *, batch_size: int
) -> tf.data.Dataset:
    """Returns batches with every example once, the last one smaller.

    Args:
        split: what to read.
        ctx: which shard of it to read.
        batch_size: examples in a batch.

    Returns:
        Batches of `x`, float32 (batch_size, 784) in [0, 1], and `y`, int64
        (batch_size,), the class.
    """
    return pipeline.eval_batches(
        _examples(split), ctx, batch_size=batch_size, decode=_decode
    )


def _examples(split: Split) -> tf.data.Dataset:
    return tf.data.Dataset.zip(
        idx.records(split.images, idx.IMAGES), idx.records(split.labels, idx.LABELS)
    )


def _decode(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    pixels = tf.cast(idx.decode(images, idx.IMAGES), tf.float32) / 255.0
    return pixels, tf.cast(idx.decode(labels, idx.LABELS)[:, 0], tf.int64)


def _locate(folder: str, name: str) -> str | None:
    for spelling in (name, name.replace("-idx", ".idx")):
        for suffix in ("", ".gz"):
            path = os.path.join(folder, spelling + suffix)
            if os.path.isfile(path):
                return path
    return None


def _check(images: str, labels: str) -> Split:
    num_labels = idx.check(labels, idx.LABELS)
    num_images = idx.check(images, idx.IMAGES)
    if num_images != num_labels:
        raise errors.UsageError(
            f"{images} has {num_images:,} images, but {labels} has {num_labels:,} "
            "labels: they are not from the same data. Replace one of them, or give "
            "another folder with --data_dir=."
        )
    return Split(images, labels, num_images)


def _missing_message(data_dir: str | None, folder: str, missing: list[str]) -> str:
    if data_dir is None:
        return (
            f"There is no --data_dir, and {folder} does not have the Fashion-MNIST "
            "files. Install them (apt-get install dataset-fashion-mnist), or "
            f"download {', '.join(name + '.gz' for name in NAMES)} and give their "
            "folder with --data_dir=."
        )
    if os.path.isdir(folder):
        problem = f"has no {', no '.join(missing)} (nor the same with .gz)"
    else:
        problem = "is not a folder"
    return (
        f"--data_dir={data_dir} {problem}. Give the folder that has "
        f"{', '.join(NAMES)}; without --data_dir, {DEBIAN_FOLDER} is read (apt-get "
        "install dataset-fashion-mnist)."
    )
