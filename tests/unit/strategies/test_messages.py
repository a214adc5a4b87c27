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


def routes(graph):
    """Returns what a traced graph sends from one device to another, once each."""
    handles = {
        inner.op.name: outer.device
        for outer, inner in graph.captures
        if outer.dtype == tf.resource
    }

    def device(op):
        # What reads or writes a variable runs where it is, whatever its scope.
        for name in (op.name, *(source.op.name for source in op.inputs)):
            if name in handles:
                return handles[name][-5:]
        return op.device[-5:]

    crossings = {
        (source.name, device(source.op), device(op))
        for op in graph.get_operations()
        for source in op.inputs
        if source.op.type not in ("Const", "Placeholder")
    }
    return sorted([a, b] for _, a, b in crossings if a and b and a != b)


def count_messages(packed, tensors, devices):
    """Traces a step that fetches, and returns which devices its messages are from."""

    @tf.function(autograph=False)
    def run():
        reads = zip(devices, tensors, strict=True)
        with tf.device(HERE):
            return packed.fetch([(d, lambda t=t: tf.identity(t)) for d, t in reads])

    return [source for source, _ in routes(run.get_concrete_function().graph)]


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
    """A model whose weights are on two other devices, with all that goes with them."""

    def __init__(self, model, optimizer, problem, how, micro=1):
        def create(next_creator, **kwargs):
            value = kwargs["initial_value"]
            value = value() if callable(value) else value
            # By their shapes, so that slots are beside their weights, as under `ps`.
            is_kernel = len(np.shape(value)) == 2
            with tf.device(ONE if is_kernel else OTHER):
                return next_creator(**{**kwargs, "initial_value": value})

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
    elements = [as_element(batch) for batch in problem.batches(2)]
    near, far = (
        Remote(problem.model, make_optimizer, problem, how)
        for how in (Direct(), Packed())
    )
    assert near.run(elements) == pytest.approx(far.run(elements), rel=1e-5)
    for a, b in zip(values(near), values(far), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert int(far.counter) == 2
    assert list(far.staleness.read()) == [2, 0, 0]


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


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        lambda: keras.optimizers.Adam(0.1, global_clipnorm=1.0),
        lambda: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 5)),
        lambda: keras.optimizers.Lamb(0.1),
    ],
    ids=["momentum", "clipped adam", "adam on a schedule", "lamb"],
)
def test_a_step_is_one_message_each_way_a_device(optimizer, problem, as_element):
    run = Remote(problem.model, optimizer, problem, Packed())
    run.run([as_element(batch) for batch in problem.batches(1)])
    expected = [[HERE, ONE], [HERE, OTHER], [ONE, HERE], [OTHER, HERE]]
    assert routes(run.graph) == expected


class Halving(keras.optimizers.SGD):
    """Writes its own rate."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
        self._learning_rate.assign(self._learning_rate * 0.5)


def test_an_optimizer_may_write_its_rate(problem, as_element):
    model = problem.model
    run = Remote(model, lambda: Halving(0.1), problem, Packed())
    run.run([as_element(batch) for batch in problem.batches(1)])
    assert 0 < float(run.optimizer.learning_rate) < 0.1


class Noting(keras.optimizers.SGD):
    """Keeps what rate it was given last."""

    def build(self, variables):
        super().build(variables)
        self.given = tf.Variable(0.0)

    def update_step(self, gradient, variable, learning_rate):
        self.given.assign(learning_rate)


@pytest.mark.parametrize("rate", [0.001, 0.3])
def test_the_rate_is_not_rounded(rate, problem, as_element):
    how = Packed("bfloat16")
    run = Remote(problem.model, lambda: Noting(rate), problem, how)
    run.run([as_element(batch) for batch in problem.batches(1)])
    assert float(run.optimizer.given) == np.float32(rate)


def test_what_travels_alone_is_not_copied(monkeypatch):
    monkeypatch.setattr(messages, "_ALONE_BYTES", 40)

    @tf.function(autograph=False)
    def run(tensor):
        return Packed().send([tensor], [ONE])

    graph = run.get_concrete_function(tf.TensorSpec([101, 3])).graph
    types = {op.type for op in graph.get_operations()}
    assert types <= {"Placeholder", "Identity", "NoOp"}
