"""What each of several replicas has for itself, and how all come to agree."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.console import Console

pytestmark = pytest.mark.usefixtures("no_unrolls")

optimizers = keras.optimizers


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
    return problem.plain(lambda: optimizers.Adam(0.05), **fields)


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


def test_what_is_drawn_differs_by_step_and_replica_and_follows_the_seed(
    problem, make_trainer
):
    def draws(replicas, seed):
        case = problem.plain(lambda: optimizers.SGD(0.01), model=drawing_model)
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


def test_what_replicas_have_for_themselves_is_averaged_for_all_to_see(
    problem, make_trainer, all_values, assert_replicas_agree
):
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
def pair(problem, no_unrolls, make_trainer, assert_replicas_agree):
    """Two replicas after a step, which agree."""
    trainer = make_trainer(problem.plain(lambda: optimizers.Adam(0.05)), 2)
    trainer.train(1)
    trainer.before_save()
    assert_replicas_agree(trainer)
    return trainer


@pytest.mark.parametrize("owner", ["_models", "_optimizers"])
def test_replicas_that_differ_by_rounding_go_on_from_the_first(
    owner, pair, capsys, all_values
):
    pair._agreement._console = Console(sys.stdout)
    pair._agreement._has_warned = False
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


def test_large_numbers_beside_weights_hide_no_difference(problem, make_trainer):
    def model():
        layers = [keras.layers.Dropout(0.5), keras.layers.Dense(1)]  # has a seed
        return keras.Sequential([keras.Input((4,)), *layers])

    case = problem.plain(lambda: optimizers.SGD(0.05), model=model)
    trainer = make_trainer(case, 2)
    trainer.before_save()
    kernel = trainer._models[1].trainable_variables[0]
    kernel.assign(kernel + 1)
    with pytest.raises(errors.TrainingFailed, match="replica 1 of 2 holds other"):
        trainer.before_save()


def test_replicas_start_from_the_first_one_s_values(problem, make_trainer):
    made = []

    def own_values(shape, dtype=None):
        made.append(np.random.default_rng(len(made)).normal(size=shape))
        return tf.constant(made[-1], dtype)

    def model():
        dense = keras.layers.Dense(1, kernel_initializer=own_values)
        return keras.Sequential([keras.Input((4,)), dense])

    trainer = make_trainer(problem.plain(lambda: optimizers.SGD(0.0), model=model), 2)
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
    problem, tmp_path, make_trainer, run, assert_same_run, assert_replicas_agree
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


def test_what_is_restored_while_training_is_shared_as_well(
    problem, tmp_path, make_trainer, all_values
):
    trainer = make_trainer(problem.plain(lambda: optimizers.Adam(0.05)), 2)
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


def test_a_rate_of_this_run_wins_on_every_replica(problem, tmp_path, make_trainer):
    case = problem.plain(lambda: optimizers.SGD(0.05))
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
def test_what_is_given_out_twice_is_refused(what, problem, make_trainer):
    one = problem.model() if what == "model" else optimizers.SGD(0.05)
    experiment = problem.experiment(**{what: lambda: one})
    with pytest.raises(errors.UsageError, match=f"same {what} for several replicas"):
        make_trainer(lambda config: experiment, 2)
