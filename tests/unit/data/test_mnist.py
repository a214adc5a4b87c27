import os

import numpy as np
import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.data import mnist
from dtrain.input.context import InputContext


def test_finds_and_reads_the_four_files(mnist_folder):
    train, test = mnist.find(str(mnist_folder))
    assert (train.count, test.count) == (30, 20)

    (batch,) = mnist.train_batches(train, InputContext(), batch_size=30, seed=0).take(1)
    x, y = (part.numpy() for part in batch)
    assert (x.shape, x.dtype, y.dtype) == ((30, 784), np.float32, np.int64)
    which = np.rint(x[:, 0] * 255).astype(int)
    assert sorted(which) == list(range(30)) and list(which) != list(range(30))
    np.testing.assert_array_equal(y, which % 10)
    np.testing.assert_allclose(x, np.repeat(which[:, None] / 255, 784, 1), rtol=1e-6)

    batches = list(mnist.eval_batches(test, InputContext(), batch_size=8))
    assert [len(y) for _, y in batches] == [8, 8, 4]
    x = np.concatenate([x for x, _ in batches])
    np.testing.assert_allclose(x[:, 783] * 255, np.arange(100, 120), rtol=1e-6)
    y = np.concatenate([y for _, y in batches])
    np.testing.assert_array_equal(y, np.arange(20) % 10)


def test_three_workers_read_every_image_once(mnist_folder):
    train, _ = mnist.find(str(mnist_folder))
    shards = [
        next(
            iter(mnist.train_batches(train, InputContext(3, i), batch_size=10, seed=0))
        )
        for i in range(3)
    ]
    pixels = np.concatenate([x[:, 0] for x, _ in shards])
    assert sorted(np.rint(pixels * 255)) == list(range(30))


def test_replicas_share_the_batches_of_one_process(mnist_folder):
    train, _ = mnist.find(str(mnist_folder))

    def batches(ctx, size):
        data = mnist.train_batches(train, ctx, batch_size=size, seed=7)
        return [sorted(np.rint(x[:, 0] * 255)) for x, _ in data.take(7)]

    whole = batches(InputContext(), 12)  # 84 images: almost three epochs
    shards = [batches(InputContext(4, i, 4), 3) for i in range(4)]
    unions = [sorted(np.concatenate(parts)) for parts in zip(*shards, strict=True)]
    assert unions == whole
    assert len({tuple(batch) for batch in whole}) == 7


def test_no_example_is_in_the_graph_that_a_chief_sends(mnist_folder):
    train, _ = mnist.find(str(mnist_folder))
    traced = tf.function(
        lambda index: mnist.train_batches(
            train, InputContext(2, index), batch_size=10, seed=0
        ),
        input_signature=[tf.TensorSpec((), tf.int64)],
    ).get_concrete_function()
    assert not traced.captured_inputs
    assert traced.graph.as_graph_def().ByteSize() < 20_000


def test_other_spelling(mnist_folder):
    for path in list(mnist_folder.iterdir()):
        path.rename(mnist_folder / path.name.replace("-idx", ".idx"))
    train, test = mnist.find(str(mnist_folder))
    assert train.images.endswith("train-images.idx3-ubyte.gz")
    assert test.labels.endswith("t10k-labels.idx1-ubyte")


def test_relative_folder_gives_absolute_paths(mnist_folder, monkeypatch):
    monkeypatch.chdir(mnist_folder.parent)
    train, _ = mnist.find(mnist_folder.name)
    assert os.path.isabs(train.images)


def test_missing_file_is_named(mnist_folder):
    (mnist_folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(errors.UsageError) as caught:
        mnist.find(str(mnist_folder))
    message = str(caught.value)
    assert f"--data_dir={mnist_folder} has no t10k-labels-idx1-ubyte (" in message
    assert "no train-images" not in message


def test_data_dir_that_is_not_there(tmp_path):
    with pytest.raises(errors.UsageError, match="nowhere is not a folder"):
        mnist.find(str(tmp_path / "nowhere"))


def test_without_any_data_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(mnist, "DEBIAN_FOLDER", str(tmp_path / "nowhere"))
    with pytest.raises(errors.UsageError) as caught:
        mnist.find(None)
    message = str(caught.value)
    assert "apt-get install dataset-fashion-mnist" in message
    assert "--data_dir=" in message
    for name in mnist.NAMES:
        assert name in message


def test_images_and_labels_of_different_data(mnist_folder, write_idx):
    write_idx(mnist_folder / "train-labels-idx1-ubyte.gz", np.zeros(29))
    with pytest.raises(errors.UsageError, match=r"has 30 images.*has 29 labels"):
        mnist.find(str(mnist_folder))


@pytest.mark.skipif(
    not os.path.isdir(mnist.DEBIAN_FOLDER),
    reason="needs apt-get install dataset-fashion-mnist",
)
def test_fashion_mnist():
    train, test = mnist.find(None)
    assert (train.count, test.count) == (60_000, 10_000)
    times = np.zeros(10, int)
    for x, y in mnist.eval_batches(test, InputContext(), batch_size=1000):
        assert (x.shape, float(tf.reduce_max(x))) == ((1000, 784), 1.0)
        times += np.bincount(y, minlength=10)
    assert list(times) == [1000] * 10
