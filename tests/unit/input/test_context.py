"""What a data function is told, and what it can ask for."""

import tensorflow as tf

from dtrain.input.context import InputContext
from dtrain.input.share import Share


def test_a_context_says_which_pipeline_this_is():
    ctx = InputContext.of(Share(1, 3, 6))
    assert (ctx.num_input_pipelines, ctx.input_pipeline_id) == (3, 1)
    assert ctx.num_replicas_in_sync == 6


def test_one_that_reads_all_is_told_that_it_is_alone():
    ctx = InputContext.of(Share(1, 3, 6, "off"))
    assert (ctx.num_input_pipelines, ctx.input_pipeline_id) == (1, 0)
    assert ctx.num_replicas_in_sync == 6


def test_contexts_are_the_same_if_their_pipelines_are():
    ctx = InputContext(2, 1, 2)
    assert ctx == InputContext.of(Share(1, 2, 2, seed=3))
    assert "share" not in repr(ctx)


def test_items_are_dealt_to_a_context_that_was_made_by_hand():
    parts = [InputContext(2, index).deal(["a", "b", "c", "d"]) for index in range(2)]
    taken = [item for part in parts for item in part.take(2).as_numpy_iterator()]
    assert sorted(taken) == [b"a", b"b", b"c", b"d"]


def test_python_may_go_over_dealt_items():
    ctx = InputContext.of(Share(epochs=2))
    assert sorted(int(number) for number in ctx.deal(3)) == [0, 0, 1, 1, 2, 2]


def test_data_is_repeated_up_to_the_last_epoch():
    data = tf.data.Dataset.range(3)
    limited, endless = InputContext.of(Share(epochs=2)), InputContext()
    assert list(limited.repeat(data).as_numpy_iterator()) == [0, 1, 2, 0, 1, 2]
    assert endless.repeat(data).cardinality() == tf.data.INFINITE_CARDINALITY


def test_a_context_knows_what_it_was_asked_for():
    ctx = InputContext()
    ctx.repeat(tf.data.Dataset.range(1))
    for _ in range(2):
        ctx.deal(3)
    assert ctx.used == ["repeat", "deal", "deal"]
