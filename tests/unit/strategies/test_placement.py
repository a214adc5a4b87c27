"""Variables go to the ps that holds the least, and slots to what they belong to."""

import types

import pytest
import tensorflow as tf

from dtrain.strategies.placement import PlacementBySize


class Cluster:
    """Makes variables as TensorFlow would: in a graph, no ps need be there."""

    def __init__(self, num_ps):
        self.placement = PlacementBySize(num_ps)

    def create(self, shape, dtype=tf.float32, colocate_with=None):
        """Returns the index of the ps that a new variable is on."""

        def next_creator(**kwargs):
            beside = kwargs["colocate_with"]
            device = beside.device if beside is not None else tf.zeros([]).device
            return types.SimpleNamespace(
                device=device, shape=tf.TensorShape(shape), dtype=dtype
            )

        with tf.Graph().as_default():
            self.variable = self.placement._create(
                next_creator, colocate_with=colocate_with, name="v"
            )
        spec = tf.DeviceSpec.from_string(self.variable.device)
        assert (spec.job, spec.device_type) == ("ps", "CPU")
        return spec.task


def test_each_goes_to_the_ps_that_holds_the_least():
    cluster = Cluster(2)
    tasks = [cluster.create([size]) for size in (100, 10, 10, 10, 200, 10)]
    # Bytes then: 400|0, 400|40, 400|80, 400|120, 400|920, 440|920.
    assert tasks == [0, 1, 1, 1, 1, 0]


def test_one_ps_holds_everything():
    cluster = Cluster(1)
    assert [cluster.create([8]) for _ in range(3)] == [0, 0, 0]


def test_the_size_is_in_bytes():
    cluster = Cluster(2)
    assert cluster.create([10], tf.float64) == 0  # 80 bytes
    assert cluster.create([15], tf.float32) == 1  # 60
    assert cluster.create([5], tf.float32) == 1  # 80
    assert cluster.create([], tf.int64) == 0  # even: the first; 88
    assert cluster.create([1], tf.int8) == 1


def test_a_slot_goes_where_its_variable_is_and_counts_there():
    cluster = Cluster(2)
    cluster.create([100])
    assert cluster.create([10]) == 1
    small = cluster.variable
    assert cluster.create([200], colocate_with=small) == 1
    # 400 bytes on ps:0 and 840 on ps:1 now.
    assert cluster.create([1]) == 0


@pytest.mark.parametrize(
    ("shapes", "lines"),
    [
        ([], ["ps:0 holds 0 variables, 0 bytes", "ps:1 holds 0 variables, 0 bytes"]),
        ([[1]], ["ps:0 holds 1 variable, 4 bytes", "ps:1 holds 0 variables, 0 bytes"]),
        (
            [[784, 256], [256], [256, 10]],
            ["ps:0 holds 1 variable, 784.0 KiB", "ps:1 holds 2 variables, 11.0 KiB"],
        ),
        (
            [[1024, 1024, 3], [1 << 28]],
            ["ps:0 holds 1 variable, 12.0 MiB", "ps:1 holds 1 variable, 1.0 GiB"],
        ),
    ],
)
def test_the_banner_says_who_holds_how_much(shapes, lines):
    cluster = Cluster(2)
    for shape in shapes:
        cluster.create(shape)
    assert cluster.placement.describe() == lines


def test_it_has_the_last_word_inside_of_a_strategys_scope():
    placement = PlacementBySize(2)
    strategy = tf.distribute.OneDeviceStrategy("/job:worker/task:7/device:CPU:0")
    with tf.Graph().as_default(), placement.scope(strategy):
        variables = [tf.Variable(tf.zeros([size])) for size in (4, 2, 1)]
    assert placement.describe() == [
        "ps:0 holds 1 variable, 16 bytes",
        "ps:1 holds 2 variables, 12 bytes",
    ]
    assert [tf.DeviceSpec.from_string(v.device).task for v in variables] == [0, 1, 1]
