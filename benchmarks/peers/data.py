"""What every peer trains: Fashion-MNIST from memory, and the models' layer widths.

Only `batches` needs TensorFlow: PyTorch reads the same arrays.
"""

import gzip
import os

import numpy as np

# dtrain.data.mnist has it too, but cannot be imported without TensorFlow.
FOLDER = "/usr/share/datasets/fashion-mnist"

NUM_PIXELS = 28 * 28
NUM_CLASSES = 10
BATCH_SIZE = 100
LEARNING_RATES = {"sgd": 0.1, "adam": 0.001}

# Units of each hidden layer.
WIDTHS = {"mnist_mlp": (256, 256), "wide_mlp": (2048, 2048, 1024)}


def load(index: int = 0, count: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Returns every count-th training example, from the index-th on.

    Returns:
        Images, float32 (n, 784) in [0, 1], and classes, int64 (n,).
    """
    images = _read("train-images-idx3-ubyte", header=16).reshape(-1, NUM_PIXELS)
    labels = _read("train-labels-idx1-ubyte", header=8)
    images, labels = images[index::count], labels[index::count]
    return images.astype(np.float32) / 255, labels.astype(np.int64)


def batches(images, labels, num_examples: int):
    """Returns endless shuffled batches of arrays, or of TF1's placeholders for them.

    Returns:
        A `tf.data.Dataset` of `(images, labels)`.
    """
    import tensorflow as tf

    examples = tf.data.Dataset.from_tensor_slices((images, labels))
    options = tf.data.Options()
    # There is nothing to tune, and the tuner takes a quarter of the pipeline's speed
    # (3,200 batches a second with it, 4,300 without, on two cores).
    options.autotune.enabled = False
    shuffled = examples.shuffle(num_examples).repeat()
    ready = shuffled.batch(BATCH_SIZE, drop_remainder=True).prefetch(4)
    return ready.with_options(options)


def _read(name: str, header: int) -> np.ndarray:
    path = f"{FOLDER}/{name}"
    if not os.path.exists(path) and not os.path.exists(f"{path}.gz"):
        raise SystemExit(
            f"{path}.gz is not there. Install it: apt-get install dataset-fashion-mnist"
        )
    is_zipped = not os.path.exists(path)
    with gzip.open(f"{path}.gz") if is_zipped else open(path, "rb") as file:
        return np.frombuffer(file.read(), np.uint8, offset=header)
