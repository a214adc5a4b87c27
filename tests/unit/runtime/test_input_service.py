"""What a chief and its workers tell each other about data."""

import pickle

import pytest
import tensorflow as tf

from dtrain.input.feed import Outline
from dtrain.input.share import START, Place
from dtrain.runtime.input_service import Opened, Order


@pytest.mark.parametrize("place", [None, Place(7, 2, 1)], ids=str)
def test_an_order_is_the_same_on_the_other_side(place):
    own = {"config": {"seed": 3, "data_dir": None}, "share": {"num_pipelines": 2}}
    order = Order(**own) if place is None else Order(**own, place=place)
    received = Order.from_json(order.to_json())
    assert received == order
    assert isinstance(received.place, Place)
    assert received.place == (place or START)


def test_what_a_worker_tells_travels():
    spec = {"a": tf.RaggedTensorSpec([None, None], tf.string)}, tf.TensorSpec([None])
    opened = Opened(Outline(spec, False, True, False, 7))
    assert pickle.loads(pickle.dumps(opened)) == opened
