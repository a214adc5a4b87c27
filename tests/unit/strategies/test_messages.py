"""What travels between a step and its variables: few messages, and nothing changed."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from dtrain.strategies import base, messages, tally
from dtrain.strategies.messages import Direct, Packed
from dtrain.strategies.objective import Objective
from dtrain.strategies.staleness import Staleness

HERE, ONE, OTHER = "CPU:0", "CPU:1", "CPU:2"

TENSORS = {
    "float32": tf.constant([[1.1, -2.2], [3e-39, np.inf]]),
    "scalar": tf.constant(0.3),
    "empty": tf.zeros([0, 3]),
    "int64": tf.constant([2**62 + 1, -5], tf.int64),
    "ticket": tf.constant(123456789012345, tf.int64),
    "float64": tf.constant([1 / 3], tf.float64),
    "float16": tf.constant([1.5], tf.float16),
    "bfloat16": tf.constant([1.5], tf.bfloat16),
    "int32": tf.constant([7, 8]),
    "bool": tf.constant([True, False]),
}


def travel(packed, tensors, there=ONE):
    """Sends tensors to a device, and fetches them from there."""
    placed = packed.send(tensors, [there] * len(tensors))
    assert all(tensor.device.endswith(there) for tensor in placed)
    return packed.fetch([(there, lambda t=t: tf.identity(t)) for t in placed])


def test_everything_arrives_as_it_was():
    with tf.device(HERE):
        arrived = travel(Packed(), list(TENSORS.values()))
    for name, before, after in zip(TENSORS, TENSORS.values(), arrived, strict=True):
        assert before.dtype == after.dtype, name
        assert after.device.endswith(HERE), name
        np.testing.assert_array_equal(before.numpy(), after.numpy(), err_msg=name)


def test_bfloat16_rounds_what_is_float32_and_nothing_else():
    with tf.device(HERE):
        arrived = travel(Packed("bfloat16"), list(TENSORS.values()))
    for name, before, after in zip(TENSORS, TENSORS.values(), arrived, strict=True):
        if before.dtype == tf.float32:
            before = tf.cast(tf.cast(before, tf.bfloat16), tf.float32)
        assert before.dtype == after.dtype, name
        np.testing.assert_array_equal(before.numpy(), after.numpy(), err_msg=name)
    exact = Packed("bfloat16").exact()
    with tf.device(HERE):
        (arrived,) = travel(exact, [tf.constant(1 / 3)])
    assert float(arrived) == np.float32(1 / 3)


def test_what_is_sparse_or_missing_is_left_alone():
    sparse = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([3]), tf.constant([9, 2]))
    first, nothing, second = Packed().send([sparse, None, tf.ones([2])], [ONE] * 3)
    assert first is sparse and nothing is None
    assert list(second.numpy()) == [1, 1]


def count_messages(packed, tensors, devices):
    """Traces a step that fetches, and returns which devices its messages are from."""

    @tf.function(autograph=False)
    def run():
        reads = zip(devices, tensors, strict=True)
        with tf.device(HERE):
            return packed.fetch([(d, lambda t=t: tf.identity(t)) for d, t in reads])

    graph = run.get_concrete_function().graph
    crossings = {
        (source.op.name, op.device)
        for op in graph.get_operations()
        for source in op.inputs
        if source.op.device and op.device and source.op.device != op.device
        if source.op.type not in ("Const", "Placeholder")
    }
    return sorted(graph.get_operation_by_name(n).device[-5:] for n, _ in crossings)


def test_what_is_on_one_device_is_one_message():
    tensors = [tf.ones([3, 2]), tf.constant(5, tf.int64), tf.ones([]), tf.ones([4])]
    assert count_messages(Packed(), tensors, [ONE] * 4) == [ONE]
    assert count_messages(Packed(), tensors, [ONE, OTHER] * 2) == [ONE, OTHER]


def test_large_tensors_travel_alone_and_others_in_bounded_messages(monkeypatch):
    monkeypatch.setattr(messages, "_ALONE_BYTES", 40)
    monkeypatch.setattr(messages, "_BUCKET_BYTES", 64)
    tensors = [tf.ones([8]), tf.ones([20]), tf.ones([8]), tf.ones([8]), tf.ones([1])]
    # The first and the third together; the large one; the others.
    assert count_messages(Packed(), tensors, [ONE] * 5) == [ONE] * 3
    with tf.device(HERE):
        arrived = travel(Packed(), [tf.range(float(n)) for n in (8, 20, 8, 8, 1)])
    assert [list(t.numpy()) for t in arrived] == [
        list(range(n)) for n in (8, 20, 8, 8, 1)
    ]


# Steps far from their variables.


class Remote:
    """A model whose weights are dealt out over two devices, and the rest to them."""

    def __init__(self, model, optimizer, problem, how, micro=1):
        devices = iter([ONE, OTHER] * 100)

        def create(next_creator, **kwargs):
            with tf.device(next(devices)):
                return next_creator(**kwargs)

        keras.utils.set_random_seed(0)
        with tf.variable_creator_scope(create):
            self.counter = tf.Variable(0, dtype=tf.int64)
            self.model, self.optimizer = model(), optimizer()
            self.optimizer.build(self.model.trainable_variables)
        x, y = problem.batches(1)[0]
        objective = Objective(problem.experiment(), [], y, self.model(x))
        self.staleness = Staleness(self.model.trainable_variables, 3, 1)
        self.step = base.Step(
            self.model,
            self.optimizer,
            objective,
            self.counter,
            micro,
            staleness=self.staleness,
            messages=how,
        )

    def run(self, elements):
        following = iter(elements)

        @tf.function(autograph=False)
        def run():
            losses, state = [], tally.start([])
            with tf.device(HERE):
                for _ in range(len(elements) // self.step._accumulate_steps):
                    loss, state = self.step.run(following, state)
                    losses.append(loss)
            return losses

        self.graph = run.get_concrete_function().graph
        return [float(loss) for loss in run()]


def values(run):
    kept = (*run.model.variables, *run.optimizer.variables)
    return [v.numpy() for v in kept if v.name != "seed_generator_state"]


def test_every_optimizer_updates_far_weights_as_near_ones(
    make_optimizer, problem, as_element
):
    elements = [as_element(batch) for batch in problem.batches(3)]
    near, far = (
        Remote(problem.model, make_optimizer, problem, how)
        for how in (Direct(), Packed())
    )
    assert near.run(elements) == pytest.approx(far.run(elements), rel=1e-5)
    for a, b in zip(values(near), values(far), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert int(far.counter) == 3
    assert list(far.staleness.read()) == [3, 0, 0]


def stateful():
    """A model with moving averages, and masks from seeds."""
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(5, kernel_initializer=keras.initializers.Ones()),
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Dropout(0.5, seed=3),
            keras.layers.Dense(1, kernel_initializer=keras.initializers.Ones()),
        ]
    )


@pytest.mark.parametrize("micro", [1, 2])
def test_moving_averages_travel_exactly(micro, problem, as_element):
    elements = [as_element(batch) for batch in problem.batches(4)]
    near, far = (
        Remote(stateful, lambda: keras.optimizers.SGD(0.05), problem, how, micro)
        for how in (Direct(), Packed())
    )
    assert near.run(elements) == pytest.approx(far.run(elements), rel=1e-6)
    for a, b in zip(values(near), values(far), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_step_is_one_message_each_way_a_device(problem, as_element):
    run = Remote(problem.model, lambda: keras.optimizers.Adam(0.1), problem, Packed())
    run.run([as_element(batch) for batch in problem.batches(1)])
    there = []
    for op in run.graph.get_operations():
        for source in op.inputs:
            if source.op.type in ("Const", "Placeholder") or op.type == "Placeholder":
                continue
            a, b = source.op.device[-5:], op.device[-5:]
            if a and b and a != b:
                there.append((source.op.name, a, b))
    routes = [route for _, *route in sorted(set(there))]
    assert sorted(routes) == [[HERE, ONE], [HERE, OTHER], [ONE, HERE], [OTHER, HERE]]
