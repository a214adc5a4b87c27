"""Training in one process: the whole of it, traced, against a hand-written loop."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.strategies import packing
from dtrain.strategies.local import LocalTrainer

schedules = keras.optimizers.schedules


@pytest.fixture
def make(problem, config):
    """A function that makes a trainer for the small problem."""

    def make(config=config, **fields):
        return LocalTrainer(problem.experiment(**fields), config)

    return make


def assert_same(ours, theirs, **tolerance):
    for a, b in zip(ours.variables, theirs.variables, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), **tolerance, err_msg=a.path)


def test_every_number_of_steps_is_exact_and_nothing_is_traced_anew(make, problem):
    assert packing.UNROLL > 2
    traces = []

    def model():
        class Spy(keras.layers.Layer):
            def call(self, x):
                traces.append(x.shape)
                return x

        return keras.Sequential([keras.Input((4,)), Spy(), keras.layers.Dense(1)])

    trainer = make(model=model)
    done = traced = 0
    for num_steps in (3, packing.UNROLL, 1, 2 * packing.UNROLL + 1, packing.UNROLL - 1):
        trainer.train(num_steps)
        traced = traced or len(traces)
        done += num_steps
        assert trainer.global_step == done
        assert int(trainer.checkpoint.global_step.numpy()) == done
    assert len(traces) == traced


@pytest.mark.parametrize(
    ("make_optimizer", "steps"),
    [
        (lambda: keras.optimizers.SGD(0.05), [25]),
        (lambda: keras.optimizers.Adam(schedules.CosineDecay(0.1, 30)), [7, 1, 17]),
    ],
    ids=["sgd", "adam with a schedule"],
)
def test_trains_as_a_hand_written_loop_does(
    make_optimizer, steps, make, problem, keras_loop
):
    trainer = make(optimizer=make_optimizer)
    window, losses = trainer.totals.window(), []
    for num_steps in steps:
        trainer.train(num_steps)
        losses.append(trainer.totals.last_loss)
    model = problem.model()
    expected = keras_loop(
        model,
        make_optimizer(),
        keras.losses.MeanSquaredError(),
        problem.batches(sum(steps)),
    )
    assert_same(trainer.checkpoint.model, model, rtol=1e-5, atol=1e-6)
    ends = np.cumsum(steps)
    means = [
        np.mean(expected[end - n : end]) for end, n in zip(ends, steps, strict=True)
    ]
    assert losses == pytest.approx(means, rel=1e-5)
    assert window.take() == pytest.approx({"loss": np.mean(expected)}, rel=1e-5)


def test_packed_steps_keep_state_and_constraints_as_the_loop_does(
    make, short_unrolls, problem, keras_loop
):
    def model():
        init = keras.initializers.GlorotUniform(seed=1)
        return keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(
                    6,
                    kernel_initializer=init,
                    kernel_regularizer="l2",
                    kernel_constraint="unit_norm",
                ),
                keras.layers.BatchNormalization(momentum=0.8),
                keras.layers.Dense(1, kernel_initializer=init),
            ]
        )

    def optimizer():
        return keras.optimizers.SGD(0.05, momentum=0.9, use_ema=True, ema_momentum=0.5)

    trainer = make(model=model, optimizer=optimizer)
    trainer.train(7)
    theirs, loss = model(), keras.losses.MeanSquaredError()
    keras_loop(theirs, optimizer(), loss, problem.batches(7))
    assert_same(trainer.checkpoint.model, theirs, rtol=1e-5, atol=1e-6)


def test_means_are_over_the_steps_since_they_were_taken(make, short_unrolls, problem):
    error = keras.metrics.MeanAbsoluteError(name="error")
    trainer = make(
        metrics=lambda: [error], optimizer=lambda: keras.optimizers.SGD(1e-9)
    )
    window = trainer.totals.window()
    assert window.take() == {}
    trainer.train(3)
    trainer.train(2)
    first = window.take()
    trainer.train(1)
    second = window.take()
    model = problem.model()
    # The rate is next to nothing, so the weights stay as they were.
    errors_of = [
        float(tf.reduce_mean(abs(model(x) - y))) for x, y in problem.batches(6)
    ]
    squares = [
        float(tf.reduce_mean((model(x) - y) ** 2)) for x, y in problem.batches(6)
    ]
    for means, steps in ((first, slice(0, 5)), (second, slice(5, 6))):
        expected = {"loss": np.mean(squares[steps]), "error": np.mean(errors_of[steps])}
        assert means == pytest.approx(expected, rel=1e-4)
    assert window.take() == {}


def test_the_same_seed_gives_the_same_run_and_another_one_another(
    make, short_unrolls, config
):
    def model():
        dense = keras.layers.Dense
        return keras.Sequential(
            [keras.Input((4,)), dense(6), keras.layers.Dropout(0.5), dense(1)]
        )

    def train(seed):
        trainer = make(config.replace(seed=seed), model=model)
        trainer.train(4)
        return trainer.totals.last_loss

    first, second, other = train(1), train(1), train(2)
    assert first == second
    assert first != other


def test_a_checkpoint_brings_everything_back(make, short_unrolls, tmp_path):
    def optimizer():
        return keras.optimizers.Adam(schedules.ExponentialDecay(0.1, 5, 0.5))

    trainer = make(optimizer=optimizer)
    trainer.train(7)
    trainer.before_save()
    path = trainer.checkpoint.write(str(tmp_path / "ckpt"))

    resumed = make(optimizer=optimizer)
    resumed.checkpoint.read(path).assert_consumed()
    resumed.after_restore()
    assert resumed.global_step == 7
    assert resumed.learning_rate() == trainer.learning_rate()
    assert int(resumed.optimizer.iterations) == 7
    assert_same(resumed.checkpoint.model, trainer.checkpoint.model, rtol=0)
    assert_same(resumed.optimizer, trainer.optimizer, rtol=0)
    resumed.train(1)
    assert int(resumed.checkpoint.global_step.numpy()) == 8


def test_a_checkpoint_can_be_read_without_dtrain(
    make, short_unrolls, tmp_path, problem
):
    trainer = make()
    trainer.train(3)
    path = trainer.checkpoint.write(str(tmp_path / "ckpt"))
    model, step = problem.model(), tf.Variable(0, dtype=tf.int64)
    reader = tf.train.Checkpoint(model=model, global_step=step)
    reader.read(path).expect_partial().assert_existing_objects_matched()
    assert_same(model, trainer.checkpoint.model, rtol=0)
    assert int(step.numpy()) == 3


def test_the_learning_rate_is_the_next_steps(make, short_unrolls):
    decay = schedules.PiecewiseConstantDecay([2], [0.5, 0.25])
    trainer = make(optimizer=lambda: keras.optimizers.SGD(decay))
    rates = []
    for _ in range(4):
        rates.append(trainer.learning_rate())
        trainer.train(1)
    assert rates == [0.5, 0.5, 0.5, 0.25]


def test_an_evaluation_sees_the_weights_of_now(make, short_unrolls, problem):
    trainer = make(eval_data=problem.data)
    before = trainer.evaluate(lambda: False)
    trainer.train(10)
    after = trainer.evaluate(lambda: False)
    assert before["examples"] == after["examples"] == 96
    assert after["loss"] < before["loss"]
    model = trainer.checkpoint.model
    expected = float(tf.reduce_mean((model(problem.x) - problem.y) ** 2))
    assert after["loss"] == pytest.approx(expected, rel=1e-4)


def test_without_evaluation_data_there_is_no_evaluation(make):
    assert make().evaluate(lambda: False) is None


def test_a_loop_has_as_many_steps_as_were_asked_for(make, config):
    assert make(config.replace(steps_per_loop=7)).steps_per_loop == 7
    assert make().steps_per_loop == packing.UNROLL


def test_a_model_that_takes_no_training_argument_is_trained(make, short_unrolls):
    class Plain(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

    assert "training" not in inspect.signature(Plain.call).parameters
    trainer = make(model=Plain)
    trainer.train(3)
    assert trainer.global_step == 3


def test_several_inputs_and_outputs_are_trained(make, short_unrolls, problem):
    def model():
        a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
        both = keras.layers.Concatenate()([a, b])
        out = {name: keras.layers.Dense(1, name=name)(both) for name in ("u", "v")}
        return keras.Model({"a": a, "b": b}, out)

    def data():
        return problem.data().map(
            lambda x, y: ({"a": x[:, :2], "b": x[:, 2:]}, {"u": y, "v": -y})
        )

    trainer = make(
        model=model,
        loss={
            "u": keras.losses.MeanSquaredError(),
            "v": keras.losses.MeanSquaredError(),
        },
        metrics=lambda: {"v": keras.metrics.MeanAbsoluteError(name="error")},
        train_data=data,
        eval_data=data,
    )
    before = trainer.evaluate(lambda: False)
    trainer.train(20)
    after = trainer.evaluate(lambda: False)
    assert set(after) == {"loss", "v_error", "examples"}
    assert after["loss"] < before["loss"] / 2
    assert after["v_error"] < before["v_error"]


# What goes wrong while training is told in one line.


def no_gradient(y, y_pred):
    return tf.reduce_sum(y, -1)


def raises(y, y_pred):
    raise ValueError("no such label")


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        (lambda problem: {"loss": no_gradient}, "none of the model's trainable"),
        (
            lambda problem: {"train_data": lambda: problem.data().take(0)},
            "Experiment(train_data=...) gives no batch",
        ),
        (
            lambda problem: {
                "train_data": lambda: problem.data().map(
                    lambda x, y: (tf.debugging.check_numerics(x / 0, "bad pixel"), y)
                )
            },
            "bad pixel",
        ),
    ],
    ids=["no gradient", "no data", "map"],
)
def test_what_fails_in_a_step_is_said_in_one_line(
    fields, part, make, short_unrolls, problem
):
    with pytest.raises(errors.TrainingFailed) as caught:
        make(**fields(problem)).train(3)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("of_tensorflow", [True, False], ids=["from_generator", "own"])
def test_what_a_generator_raises_is_told_with_its_traceback(
    of_tensorflow, make, short_unrolls, problem
):
    def generate():
        for _ in range(3):
            yield problem.x[:8], problem.y[:8]
        raise ValueError("line 7 has no label")

    def data():
        if not of_tensorflow:
            return generate
        signature = (tf.TensorSpec((None, 4)), tf.TensorSpec((None, 1)))
        return tf.data.Dataset.from_generator(generate, output_signature=signature)

    trainer = make(train_data=data)
    with pytest.raises(errors.TrainingFailed) as caught:
        for _ in range(4):
            trainer.train(1)
    first, *others = str(caught.value).splitlines()
    assert "train_data failed after 24 examples: " in first
    assert "ValueError: line 7 has no label" in first
    line = generate.__code__.co_firstlineno + 3
    assert others == [
        "Traceback (most recent call last):",
        f'  File "{__file__}", line {line}, in generate',
        '    raise ValueError("line 7 has no label")',
        "ValueError: line 7 has no label",
    ]


def test_what_the_users_loss_raises_is_described_with_its_line(make, short_unrolls):
    with pytest.raises(ValueError) as caught:
        make(loss=raises).train(1)
    line = raises.__code__.co_firstlineno + 1
    text = errors.describe(caught.value)
    assert text == f"ValueError: no such label ({__file__}, line {line})"
