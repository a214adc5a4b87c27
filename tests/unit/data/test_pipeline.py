import numpy as np
import pytest
import tensorflow as tf

from dtrain.data import pipeline
from dtrain.input.context import InputContext
from dtrain.input.share import Share

COUNT = 100


def read(batches, num_batches):
    return np.concatenate(list(batches.take(num_batches).as_numpy_iterator()))


@pytest.mark.parametrize("count", [COUNT // 2, COUNT + 1])
def test_a_wrong_count_is_told(count):
    batches = pipeline.train_batches(
        tf.data.Dataset.range(COUNT), InputContext(), count=count, batch_size=5, seed=0
    )
    with pytest.raises(tf.errors.OpError, match=r"cardinality|contain"):
        list(batches.take(2 * COUNT))


def train(pipelines=1, index=0, batch_size=1, seed=0, replicas=1, **options):
    return pipeline.train_batches(
        tf.data.Dataset.range(COUNT),
        InputContext(pipelines, index, replicas),
        count=COUNT,
        batch_size=batch_size,
        seed=seed,
        **options,
    )


def test_three_pipelines_read_the_whole_set_and_nothing_twice():
    sizes = (34, 33, 33)
    epochs = [read(train(3, i), size) for i, size in enumerate(sizes)]
    assert sorted(np.concatenate(epochs)) == list(range(COUNT))


def test_the_same_when_the_pipeline_is_known_only_as_a_tensor():
    @tf.function(input_signature=[tf.TensorSpec((), tf.int64)])
    def first_epoch(index):
        return next(iter(train(4, index, batch_size=COUNT // 4)))

    epochs = [first_epoch(tf.constant(i, tf.int64)).numpy() for i in range(4)]
    assert sorted(np.concatenate(epochs)) == list(range(COUNT))
    np.testing.assert_array_equal(
        epochs[1], next(iter(train(4, 1, batch_size=COUNT // 4)))
    )


def test_every_epoch_is_the_whole_set_in_another_order():
    first, second = read(train(), 2 * COUNT).reshape(2, COUNT)
    assert sorted(first) == sorted(second) == list(range(COUNT))
    assert list(first) != list(second)
    assert list(first) != list(range(COUNT))


def test_the_seed_decides_the_order():
    assert list(read(train(seed=1), 150)) == list(read(train(seed=1), 150))
    assert list(read(train(seed=1), 150)) != list(read(train(seed=2), 150))


def test_batches_run_on_over_the_end_of_an_epoch():
    # 3 batches of 40 from 100 examples: none is short, none is left out.
    batches = list(train(batch_size=40).take(5))
    assert [len(batch) for batch in batches] == [40] * 5
    values, times = np.unique(np.concatenate(batches), return_counts=True)
    assert list(values) == list(range(COUNT)) and set(times) == {2}


def test_a_batch_may_be_larger_than_the_shard():
    (batch,) = train(50, 3, batch_size=5).take(1)
    assert set(batch.numpy()) == {3, 53}


def test_train_batches_have_a_static_size():
    assert train(batch_size=7).element_spec.shape == (7,)


# Replicas that compute one global batch.


@pytest.mark.parametrize(("pipelines", "batch_size"), [(2, 15), (3, 10), (6, 5)])
def test_the_shards_batches_make_up_the_batch_of_one_process(pipelines, batch_size):
    whole = list(train(batch_size=30, seed=3).take(10))  # three epochs
    shards = [
        list(train(pipelines, i, batch_size, seed=3, replicas=pipelines).take(10))
        for i in range(pipelines)
    ]
    for k, batch in enumerate(whole):
        union = np.concatenate([shard[k] for shard in shards])
        assert sorted(union) == sorted(batch.numpy()), k


def test_one_pipeline_of_several_replicas_reads_as_one_process_does():
    assert list(read(train(replicas=4), 250)) == list(read(train(), 250))


def test_pipelines_that_do_not_wait_for_each_other_keep_to_a_shard():
    seen = read(train(2, 1), 150)
    assert set(seen) == set(range(1, COUNT, 2))
    assert set(read(train(2, 1, replicas=2), 150)) - set(seen)


@pytest.mark.parametrize("replicas", [1, 3])
def test_decode_gets_the_whole_shard_once(replicas):
    sizes = tf.Variable(tf.zeros([0], tf.int64), shape=[None])

    def decode(examples):
        sizes.assign(tf.concat([sizes, [tf.size(examples, tf.int64)]], 0))
        return examples * 2

    batches = train(3, 1, batch_size=10, replicas=replicas, decode=decode)
    assert set(read(batches, 12)) <= set(range(0, 2 * COUNT, 2))
    assert list(sizes.numpy()) == [33 if replicas == 1 else COUNT]


@pytest.mark.parametrize("replicas", [1, 7])
@pytest.mark.parametrize("count", [3, 20])
def test_as_many_epochs_as_are_asked_for(count, replicas):
    def batches(index):
        share = Share(index, 7, replicas, epochs=4)
        return pipeline.train_batches(
            tf.data.Dataset.range(count),
            InputContext.of(share),
            count=count,
            batch_size=2,
            seed=0,
        )

    shards = [list(batches(index)) for index in range(7)]
    for index, shard in enumerate(shards):
        assert len(shard) == batches(index).cardinality()
        assert all(len(batch) == 2 for batch in shard[:-1])
    seen = np.concatenate([batch for shard in shards for batch in shard])
    values, times = np.unique(seen, return_counts=True)
    assert list(values) == list(range(count)) and set(times) == {4}


@pytest.mark.parametrize("pipelines", [1, 3])
def test_evaluation_reads_every_example_once(pipelines):
    batches = [
        list(
            pipeline.eval_batches(
                tf.data.Dataset.range(COUNT),
                InputContext(pipelines, i),
                batch_size=32,
                decode=lambda batch: batch * 2,
            ).as_numpy_iterator()
        )
        for i in range(pipelines)
    ]
    if pipelines == 1:
        assert [len(batch) for batch in batches[0]] == [32, 32, 32, 4]
    seen = np.concatenate([batch for shard in batches for batch in shard])
    assert sorted(seen) == list(range(0, 2 * COUNT, 2))
