"""Replicas that compute one global batch: what one process does with all of it."""

import functools
import itertools
import sys

import keras
import keras.src.losses.loss as keras_loss
import numpy as np
import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.strategies import packing, pipelines
from dtrain.strategies.local import LocalTrainer
from dtrain.strategies.mirrored import MirroredTrainer, find_devices
from dtrain.strategies.reduction import Reduction

GLOBAL_BATCH = 16
STEPS = 4

# Replicas and micro-batches that a global batch is divided into.
WAYS = {
    "two replicas": (2, 1),
    "four replicas": (4, 1),
    "two micro-batches": (1, 2),
    "two replicas with two micro-batches": (2, 2),
}


@pytest.fixture(autouse=True, scope="module")
def no_unrolls():
    """Tracing takes time in proportion; what is traced is the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "UNROLL", 1)
        yield


def make_trainer(experiment, replicas=1, accumulate_steps=1, **options):
    config = RunConfig(
        strategy="local" if replicas == 1 else "mirrored",
        train_steps=100,
        batch_size=GLOBAL_BATCH // (replicas * accumulate_steps),
        accumulate_steps=accumulate_steps,
        devices_per_task=replicas,
        **options,
    )

    if replicas == 1:
        return LocalTrainer(experiment(config), config)
    return MirroredTrainer(experiment(config), config, Console(sys.stdout))


def run(trainer, steps=STEPS):
    """Trains step by step; returns losses, their mean and metrics, and weights."""
    window, losses = trainer.totals.window(), []
    for _ in range(steps):
        trainer.train(1)
        losses.append(trainer.totals.last_loss)
    trainer.before_save()
    weights = [v.numpy() for v in trainer.checkpoint.model.variables]
    return losses, window.take(), weights


def assert_same_run(ours, theirs, rtol=1e-5, atol=2e-6):
    assert ours[0] == pytest.approx(theirs[0], rel=rtol)
    assert ours[1] == pytest.approx(theirs[1], rel=rtol)
    for a, b in zip(ours[2], theirs[2], strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


# Models and losses with all that depends on how a batch is divided.


class Penalty(keras.layers.Layer):
    def call(self, x):
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        return x


def distance(y, y_pred):
    return tf.reduce_sum(tf.abs(y - y_pred) ** 1.5, -1)


def rich_model():
    inputs = keras.Input((4,))
    x = keras.layers.Dense(
        6, activation="tanh", kernel_regularizer="l2", activity_regularizer="l1"
    )(inputs)
    x = Penalty()(x)
    outputs = {name: keras.layers.Dense(1, name=name)(x) for name in ("u", "v", "w")}
    return keras.Model(inputs, outputs)


def rich(problem, optimizer):
    """Penalties, outputs with losses of several kinds, and weights everywhere."""
    weights = np.linspace(0, 2, 96, dtype=np.float32)

    def experiment(config):
        def data():
            columns = (problem.x, problem.y, weights)
            data = tf.data.Dataset.from_tensor_slices(columns).batch(config.batch_size)
            return data.map(lambda x, y, w: (x, {"u": y, "v": -y, "w": y + 1}, w))

        return problem.experiment(
            model=rich_model,
            optimizer=optimizer,
            loss={
                "u": keras.losses.MeanSquaredError(),
                "v": distance,
                "w": keras.losses.Huber(reduction=None),
            },
            loss_weights={"u": 1.0, "v": 0.3, "w": 2.0},
            metrics=lambda: {"v": keras.metrics.MeanAbsoluteError(name="error")},
            train_data=data,
        )

    return experiment


def embedding(problem, optimizer):
    """Sparse gradients, with the same rows on several replicas."""
    words = np.random.default_rng(1).integers(0, 7, size=(96, 3))

    def model():
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((3,), dtype="int32"),
                layers.Embedding(7, 4),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )

    def experiment(config):
        def data():
            columns = (words.astype(np.int32), problem.y)
            return tf.data.Dataset.from_tensor_slices(columns).batch(config.batch_size)

        return problem.experiment(model=model, optimizer=optimizer, train_data=data)

    return experiment


def plain(problem, optimizer, **fields):
    """The small problem as it is."""
    return lambda config: problem.experiment(
        optimizer=optimizer,
        train_data=lambda: problem.data().rebatch(config.batch_size),
        **fields,
    )


optimizers = keras.optimizers


@pytest.mark.parametrize(
    ("make", "optimizer", "ways"),
    [
        (
            rich,
            lambda: optimizers.AdamW(0.05, weight_decay=0.1, global_clipnorm=0.5),
            ["two replicas with two micro-batches"],
        ),
        (
            embedding,
            lambda: optimizers.Adam(0.05, global_clipnorm=0.5),
            ["two replicas", "two micro-batches"],
        ),
        (
            plain,
            lambda: optimizers.SGD(0.05, momentum=0.9, clipnorm=0.2),
            ["two replicas", "four replicas"],  # one after the other in a process
        ),
    ],
    ids=["clipped as a whole, with decay", "embedding", "clipped one by one"],
)
def test_however_a_batch_is_divided_training_is_the_same(
    make, optimizer, ways, problem
):
    case = make(problem, optimizer)
    whole = run(make_trainer(case))
    assert len(set(whole[0])) == STEPS
    for way in ways:
        trainer = make_trainer(case, *WAYS[way])
        assert trainer.examples_per_step == GLOBAL_BATCH
        assert trainer.replicas == WAYS[way][0]
        assert_same_run(run(trainer), whole)


class TwoLosses(keras.losses.Loss):
    def call(self, y, y_pred):
        losses = keras.losses
        return losses.MeanSquaredError()(y, y_pred) + losses.Huber()(y, y_pred)


class Autoencoder(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.decode = keras.layers.Dense(4)

    def call(self, x):
        self.add_loss(keras.losses.MeanSquaredError()(x, self.decode(x)))
        return x


def autoencoding_model():
    return keras.Sequential([keras.Input((4,)), Autoencoder(), keras.layers.Dense(1)])


@pytest.mark.parametrize(
    "fields",
    [
        {"loss": lambda y, y_pred: keras.losses.MeanSquaredError()(y, y_pred)},
        {"loss": TwoLosses()},
        {"model": autoencoding_model},
    ],
    ids=["in a function", "in a loss", "in a layer"],
)
def test_a_loss_of_keras_is_the_mean_wherever_it_is_called(fields, problem):
    case = plain(problem, lambda: optimizers.SGD(0.05), **fields)
    whole = run(make_trainer(case), 2)
    assert_same_run(run(make_trainer(case, 2), 2), whole)


def test_batch_norm_over_all_replicas_is_that_of_the_whole_batch(problem, monkeypatch):
    name = "scale_loss_for_distribution"
    monkeypatch.setattr(keras_loss, name, getattr(keras_loss, name))

    def model():
        layers = keras.layers
        norm = layers.BatchNormalization(synchronized=True)
        dense = layers.Dense(1, kernel_initializer="ones")
        return keras.Sequential([keras.Input((4,)), norm, dense])

    case = plain(problem, lambda: optimizers.SGD(0.05), model=model)
    whole = run(make_trainer(case), 2)
    assert_same_run(run(make_trainer(case, 2), 2), whole)


def test_that_comparison_sees_one_lost_gradient(problem, monkeypatch):
    def lossy_sum(self, gradients, examples, replica, all_reduce):
        if replica == 1:
            gradients = [tf.zeros_like(gradient) for gradient in gradients]
        return whole_sum(self, gradients, examples, replica, all_reduce)

    case = plain(problem, lambda: optimizers.Adam(0.05, global_clipnorm=0.5))
    whole = run(make_trainer(case), steps=2)
    whole_sum = Reduction.sum
    monkeypatch.setattr(Reduction, "sum", lossy_sum)
    ours = run(make_trainer(case, 2), steps=2)
    assert ours[0][0] == pytest.approx(whole[0][0], rel=1e-5)  # before any update
    with pytest.raises(AssertionError):
        assert_same_run(ours, whole)


def test_gradients_in_half_precision_train_nearly_the_same(problem):
    case = plain(problem, lambda: optimizers.SGD(0.05))
    whole = run(make_trainer(case))
    ours = run(make_trainer(case, 2, gradient_dtype="bfloat16"))
    assert ours[0][0] == pytest.approx(whole[0][0], rel=1e-6)  # losses are not rounded
    assert_same_run(ours, whole, rtol=2e-2, atol=5e-3)
    with pytest.raises(AssertionError):
        assert_same_run(ours, whole)


# Parts of different sizes.


def test_a_mean_is_over_examples_and_not_over_uneven_parts(problem, keras_loop):
    """Batches of 7, 7 and 2 examples, whose labels tell them apart."""

    def data():
        y = problem.y[:16] + np.where(np.arange(16) < 14, 0, 10)[:, None]
        return tf.data.Dataset.from_tensor_slices((problem.x[:16], y)).batch(7)

    parts = list(data().repeat().take(4 * STEPS))
    unions = [
        [tf.concat(column, 0) for column in zip(*parts[i : i + 4], strict=True)]
        for i in range(0, len(parts), 4)
    ]
    experiment = problem.experiment(train_data=data)
    ours = run(make_trainer(lambda config: experiment, 2, 2))
    model = problem.model()
    losses = keras_loop(
        model, optimizers.SGD(0.05), keras.losses.MeanSquaredError(), unions
    )
    weights = [v.numpy() for v in model.variables]
    assert_same_run(ours, (losses, {"loss": np.mean(losses)}, weights))


# A replica without data.


@pytest.fixture
def starve(monkeypatch, problem):
    """A function after whose call the second of two replicas has no batch."""

    def starve():
        elements = problem.data().map(lambda x, y: (tf.constant(0, tf.int64), (x, y)))
        turns, nothing = itertools.count(), iter(elements.take(0))
        real = pipelines.next_or_zeros

        def next_or_zeros(iterator):
            return real(nothing if next(turns) % 2 else iterator)

        monkeypatch.setattr(pipelines, "next_or_zeros", next_or_zeros)

    return starve


class Shares(keras.layers.Layer):
    """Makes NaN of zeros, forward and backward."""

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[1:], initializer="ones")

    def call(self, x):
        x = keras.ops.square(x * self.scale)
        return x / keras.ops.sum(x, axis=-1, keepdims=True)


def test_what_a_replica_makes_of_zeros_does_not_count(problem, starve):
    def model():
        return keras.Sequential(
            [
                keras.Input((4,)),
                Shares(),
                keras.layers.BatchNormalization(momentum=0.5),
                keras.layers.Dense(1, kernel_initializer="ones"),
            ]
        )

    def case(config):
        return problem.experiment(
            model=model, metrics=lambda: [keras.metrics.MeanAbsoluteError("error")]
        )

    whole = run(make_trainer(case))
    starve()
    trainer = make_trainer(case, 2)
    trainer.before_save()
    ours = run(trainer)
    assert np.all(np.isfinite(ours[0]))
    assert_same_run(ours, whole)
    assert_replicas_agree(trainer)
    mean = trainer._models[1].layers[1].moving_mean
    before = mean.numpy()
    trainer.train(1)
    np.testing.assert_array_equal(mean, before)


def test_without_any_batch_a_run_fails(problem):
    empty = problem.data().filter(lambda x, y: False)  # which nobody knows before
    experiment = problem.experiment(train_data=lambda: empty)
    trainer = make_trainer(lambda config: experiment, 2)
    before = [v.numpy() for v in trainer.checkpoint.model.variables]
    with pytest.raises(errors.TrainingFailed, match="gives no batch"):
        trainer.train(2)
    after = [v.numpy() for v in trainer.checkpoint.model.variables]
    np.testing.assert_equal(after, before)


def test_batches_that_weigh_nothing_are_batches(problem):
    def case(config):
        data = problem.data().map(lambda x, y: (x, y, tf.zeros([8])))
        loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
        return problem.experiment(train_data=lambda: data, loss=loss)

    trainer = make_trainer(case, 2)
    before = [v.numpy() for v in trainer.checkpoint.model.variables]
    losses, _, after = run(trainer, 2)
    assert losses == [0, 0]
    assert trainer.global_step == 2
    np.testing.assert_equal(after, before)


# What each replica has for itself.


class Notes(keras.layers.Layer):
    """Counts its calls."""

    def build(self, shape):
        state = {"trainable": False, "initializer": "zeros"}
        self.calls = self.add_weight(dtype="int32", name="calls", **state)
        self.seen = self.add_weight(dtype="bool", name="seen", **state)

    def call(self, x):
        self.calls.assign_add(1)
        self.seen.assign(True)
        return x


def noting_model():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.BatchNormalization(momentum=0.5),
            Notes(),
            layers.Dense(1),
        ]
    )


def noting(problem, **fields):
    fields = {"model": noting_model, **fields}
    return plain(problem, lambda: optimizers.Adam(0.05), **fields)


class Draws(keras.layers.Layer):
    """Draws twice a call, and keeps it all."""

    def __init__(self, draw, **arguments):
        super().__init__()
        self.draw = draw
        self.arguments = arguments

    def build(self, shape):
        state = {"trainable": False, "initializer": "zeros"}
        self.calls = self.add_weight(dtype="int32", **state)
        self.kept = self.add_weight((4, 2, 20), **state)

    def call(self, x):
        ones = keras.ops.ones((20,))
        pair = [self.draw(ones, **self.arguments) for _ in range(2)]
        pair = keras.ops.stack(pair)
        place = keras.ops.one_hot(self.calls, 4)[:, None, None]
        self.kept.assign(self.kept + place * pair)
        self.calls.assign_add(1)
        return x * keras.ops.mean(pair)


def drawing_model():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((4,)),
            Draws(layers.Dropout(0.5), training=True),
            Draws(keras.random.dropout, rate=0.5),
            Draws(lambda ones: keras.random.normal(ones.shape)),
            layers.Dense(1, kernel_initializer="ones"),
        ]
    )


def test_what_is_drawn_differs_by_step_and_replica_and_follows_the_seed(problem):
    def draws(replicas, seed):
        case = plain(problem, lambda: optimizers.SGD(0.01), model=drawing_model)
        trainer = make_trainer(case, replicas, 2, seed=seed)
        trainer.train(2)
        models = getattr(trainer, "_models", [trainer.checkpoint.model])
        return np.array([[d.kept.numpy() for d in m.layers[:3]] for m in models])

    drawn = draws(2, seed=3)
    # By replica, way to draw, micro-batches of two steps, and draw within one.
    assert drawn.shape == (2, 3, 2 * 2, 2, 20)
    for way in range(3):
        every = drawn[:, way].reshape(-1, 20)
        assert len({one.tobytes() for one in every}) == len(every)
        if way < 2:
            assert set(np.unique(every)) == {0.0, 2.0}
    np.testing.assert_array_equal(draws(2, seed=3), drawn)
    np.testing.assert_array_equal(draws(1, seed=3), drawn[:1])  # as in one process
    others = draws(1, seed=4)[0]
    for way in range(3):
        assert np.all(np.any(others[way] != drawn[0, way], -1))


def all_values(trainer):
    return [[v.numpy() for v in variables] for variables in trainer._variables()]


def assert_replicas_agree(trainer):
    first, *others = all_values(trainer)
    for other in others:
        for a, b in zip(first, other, strict=True):
            assert a.tobytes() == b.tobytes()


def test_what_replicas_have_for_themselves_is_averaged_for_all_to_see(problem):
    trainer = make_trainer(noting(problem, eval_data=problem.data), 2)
    first, second = (model.layers for model in trainer._models)
    for settle in (trainer.before_save, lambda: trainer.evaluate(lambda: False)):
        trainer.train(3)
        np.testing.assert_array_equal(first[2].kernel, second[2].kernel)
        means = {}
        for name in ("moving_mean", "moving_variance"):
            pair = [getattr(layers[0], name).numpy() for layers in (first, second)]
            assert np.all(pair[0] != pair[1])
            means[name] = np.mean(pair, 0)
        second[1].calls.assign(100)
        results = settle()
        for name, mean in means.items():
            np.testing.assert_allclose(getattr(first[0], name), mean, rtol=1e-6)
        steps = trainer.global_step
        assert [int(layers[1].calls) for layers in (first, second)] == [steps, steps]
        assert first[1].seen.numpy() and second[1].seen.numpy()
        assert [int(o.iterations) for o in trainer._optimizers] == [steps, steps]
        assert_replicas_agree(trainer)
    # Once more changes nothing.
    before = all_values(trainer)
    trainer.before_save()
    np.testing.assert_equal(all_values(trainer), before)
    # And what was evaluated is what is there now.
    y_pred = trainer.checkpoint.model(problem.x, training=False)
    expected = float(tf.reduce_mean((y_pred - problem.y) ** 2))
    assert results == pytest.approx({"loss": expected, "examples": 96}, rel=1e-5)


@pytest.fixture(scope="module")
def pair(problem, no_unrolls):
    """Two replicas after a step, which agree."""
    trainer = make_trainer(plain(problem, lambda: optimizers.Adam(0.05)), 2)
    trainer.train(1)
    trainer.before_save()
    assert_replicas_agree(trainer)
    return trainer


@pytest.mark.parametrize("owner", ["_models", "_optimizers"])
def test_replicas_that_differ_by_rounding_go_on_from_the_first(owner, pair, capsys):
    pair._console = Console(sys.stdout)
    pair._has_warned = False
    expected = all_values(pair)
    variable = getattr(pair, owner)[1].variables[-1]
    rounded = variable.numpy()
    rounded.ravel()[0] = np.nextafter(rounded.ravel()[0], 1)  # one bit of one number
    for _ in range(2):
        variable.assign(rounded)
        pair.before_save()
        np.testing.assert_equal(all_values(pair), expected)
    out = capsys.readouterr().out
    assert out.count("Warning") == 1
    assert "at step 1 replica 1 had rounded differently from replica 0" in out


@pytest.mark.parametrize("change", [1.0, np.nan], ids=str)
@pytest.mark.parametrize("owner", ["_models", "_optimizers"])
def test_replicas_that_differ_by_more_are_refused(owner, change, pair):
    variable = getattr(pair, owner)[1].variables[-1]
    variable.assign(variable + change)
    with pytest.raises(errors.TrainingFailed, match="replica 1 of 2 holds other"):
        pair.before_save()


def test_large_numbers_beside_weights_hide_no_difference(problem):
    def model():
        layers = [keras.layers.Dropout(0.5), keras.layers.Dense(1)]  # has a seed
        return keras.Sequential([keras.Input((4,)), *layers])

    case = plain(problem, lambda: optimizers.SGD(0.05), model=model)
    trainer = make_trainer(case, 2)
    trainer.before_save()
    kernel = trainer._models[1].trainable_variables[0]
    kernel.assign(kernel + 1)
    with pytest.raises(errors.TrainingFailed, match="replica 1 of 2 holds other"):
        trainer.before_save()


def test_replicas_start_from_the_first_one_s_values(problem):
    made = []

    def own_values(shape, dtype=None):
        made.append(np.random.default_rng(len(made)).normal(size=shape))
        return tf.constant(made[-1], dtype)

    def model():
        dense = keras.layers.Dense(1, kernel_initializer=own_values)
        return keras.Sequential([keras.Input((4,)), dense])

    trainer = make_trainer(plain(problem, lambda: optimizers.SGD(0.0), model=model), 2)
    first, second = (model.layers[0].kernel for model in trainer._models)
    assert np.all(first.numpy() != second.numpy())
    trainer.train(1)
    np.testing.assert_allclose(first, made[0], rtol=1e-6)
    np.testing.assert_array_equal(first, second)


# Checkpoints go from one strategy to another.


def all_values_of(trainer):
    model = trainer.checkpoint.model
    variables = (*model.variables, *trainer.optimizer.variables)
    return [variable.numpy() for variable in variables]


def test_a_run_goes_on_under_another_strategy_as_if_it_had_not_stopped(
    problem, tmp_path
):
    # One global batch, again and again, wherever a run starts to read.
    def experiment(config):
        return problem.experiment(
            optimizer=lambda: optimizers.Adam(0.05),
            train_data=lambda: problem.data().take(2).rebatch(config.batch_size),
        )

    local, mirrored = make_trainer(experiment), make_trainer(experiment, 2)
    losses, path = [], str(tmp_path / "ckpt")
    for trainer, other in ((local, mirrored), (mirrored, local), (local, mirrored)):
        losses += run(trainer, 2)[0]
        trainer.checkpoint.write(path)
        other.checkpoint.read(path).assert_consumed()
        other.after_restore()
        assert other.global_step == len(losses)
        other.before_save()  # shares, before anything is trained
        np.testing.assert_equal(all_values_of(other), all_values_of(trainer))
    assert_replicas_agree(mirrored)
    whole = run(make_trainer(experiment), 6)
    assert_same_run((losses, {}, run(mirrored, 0)[2]), (whole[0], {}, whole[2]))


def test_what_is_restored_while_training_is_shared_as_well(problem, tmp_path):
    trainer = make_trainer(plain(problem, lambda: optimizers.Adam(0.05)), 2)
    trainer.train(1)
    trainer.before_save()
    path = trainer.checkpoint.write(str(tmp_path / "ckpt"))
    saved = all_values_of(trainer)
    trainer.train(2)
    trainer.checkpoint.read(path).assert_consumed()
    trainer.after_restore()
    trainer.before_save()
    for values in all_values(trainer):
        np.testing.assert_equal(values, saved)
    assert trainer.global_step == int(trainer.checkpoint.global_step.numpy()) == 1


def test_a_rate_of_this_run_wins_on_every_replica(problem, tmp_path):
    case = plain(problem, lambda: optimizers.SGD(0.05))
    first = make_trainer(case, 2, learning_rate=0.5)
    first.before_save()
    path = first.checkpoint.write(str(tmp_path / "ckpt"))
    second = make_trainer(case, 2, learning_rate=0.25)
    second.checkpoint.read(path).assert_consumed()
    second.after_restore()
    second.before_save()
    rates = [float(optimizer.learning_rate) for optimizer in second._optimizers]
    assert rates == [0.25, 0.25]


# What is refused.


@pytest.mark.parametrize("what", ["model", "optimizer"])
def test_what_is_given_out_twice_is_refused(what, problem):
    one = problem.model() if what == "model" else optimizers.SGD(0.05)
    experiment = problem.experiment(**{what: lambda: one})
    with pytest.raises(errors.UsageError, match=f"same {what} for several replicas"):
        make_trainer(lambda config: experiment, 2)


@pytest.mark.parametrize("way", list(WAYS.values())[1:], ids=list(WAYS)[1:])
def test_a_loss_that_sums_over_its_batch_is_refused(way, problem):
    loss = keras.losses.MeanSquaredError(reduction="sum")
    case = plain(problem, lambda: optimizers.SGD(0.05), loss=loss)
    with pytest.raises(errors.UsageError, match="how a global batch is divided"):
        make_trainer(case, *way)
    make_trainer(case)  # one part is as good as any


def test_more_parts_of_a_cpu_than_there_are_is_refused():
    assert find_devices(None) == ["CPU:0"]
    assert find_devices(3) == ["CPU:0", "CPU:1", "CPU:2"]
    with pytest.raises(errors.UsageError, match="with 4 CPU devices"):
        find_devices(5)


@pytest.mark.parametrize("way", ["two micro-batches", "two replicas"])
def test_gradients_whose_shape_the_graph_does_not_know_are_summed(way, problem):
    """As of a dense layer over sequences, where the batch size is free."""

    def model():
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((4,)),
                layers.Reshape((4, 1)),
                layers.Dense(3, activation="tanh"),
                layers.Dense(2),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )

    case = plain(problem, lambda: optimizers.SGD(0.05), model=model)
    whole = run(make_trainer(case), 2)
    assert_same_run(run(make_trainer(case, *WAYS[way]), 2), whole)


def test_a_weighted_loss_of_one_number_is_what_it_is_without_others(problem):
    def experiment(config):
        data = problem.data().map(lambda x, y: (x, abs(y), abs(y)[:, 0]))
        loss = keras.losses.Dice()
        return problem.experiment(train_data=lambda: data.take(1).repeat(), loss=loss)

    # Both replicas have the same batch, so each has the loss of one process.
    whole = run(make_trainer(experiment), 2)
    assert_same_run(run(make_trainer(experiment, 2), 2), whole)


def weighted_mean(problem, config):
    columns = (problem.x, problem.y, np.linspace(0, 2, 96, dtype=np.float32))
    data = tf.data.Dataset.from_tensor_slices(columns).batch(config.batch_size)
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    return problem.experiment(train_data=lambda: data, loss=loss)


def masked_mean(problem, config):
    """One loss a step of a sequence, of which the mask leaves more or fewer."""
    words = np.minimum(np.arange(96 * 4).reshape(96, 4) % 11, 7) * (problem.x > 0)
    data = tf.data.Dataset.from_tensor_slices((words, problem.x[..., None])).batch(
        config.batch_size
    )

    def model():
        return keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                keras.layers.Embedding(9, 3, mask_zero=True),
                keras.layers.SimpleRNN(3, return_sequences=True),
                keras.layers.Dense(1),
            ]
        )

    return problem.experiment(model=model, train_data=lambda: data)


@pytest.mark.parametrize("way", ["two micro-batches", "two replicas"])
@pytest.mark.parametrize("experiment", [weighted_mean, masked_mean])
def test_a_mean_over_what_weighs_is_one_over_the_whole(experiment, way, problem):
    case = functools.partial(experiment, problem)
    whole = run(make_trainer(case), 2)
    assert_same_run(run(make_trainer(case, *WAYS[way]), 2), whole)
