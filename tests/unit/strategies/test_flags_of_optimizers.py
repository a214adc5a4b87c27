"""What flags change of an experiment's optimizer, and of its model's precision."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.strategies import parts, schedules
from dtrain.strategies.local import LocalTrainer

optimizers = keras.optimizers
SPEC = (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1]))


@pytest.fixture
def make(problem, config):
    """A function that makes an optimizer as an experiment and flags say."""

    def make(own, /, **flags):
        experiment = problem.experiment(optimizer=lambda: own)
        return parts.make_optimizer(experiment, config.replace(**flags))

    return make


def rates(optimizer, *steps):
    return [round(parts.rate_at(optimizer, step), 6) for step in steps]


def cosine(rate):
    return optimizers.schedules.CosineDecay(rate, 100)


# Schedules.


@pytest.mark.parametrize(
    ("own", "flags", "expected"),
    [
        (0.5, {"learning_rate_schedule": "cosine"}, [0.5, 0.25]),
        (
            0.5,
            {"learning_rate_schedule": "cosine", "learning_rate": 0.25},
            [0.25, 0.125],
        ),
        (
            cosine(0.5),
            {"learning_rate_schedule": "constant", "learning_rate": 0.25},
            [0.25, 0.25],
        ),
        (0.5, {"warmup_steps": 100}, [0, 0.25]),
        (0.5, {"warmup_steps": 100, "learning_rate": 0.25}, [0, 0.125]),
        (cosine(0.5), {"warmup_steps": 10}, [0, 0.327254]),  # of step 40
        (cosine(0.5), {"warmup_steps": 10, "learning_rate": 0.25}, [0, 0.25]),
        # Made from the flag by the experiment itself.
        (cosine(0.25), {"warmup_steps": 10, "learning_rate": 0.25}, [0, 0.163627]),
    ],
    ids=[
        "a schedule",
        "with a rate",
        "in place of another",
        "warm-up",
        "warm-up to a rate",
        "warm-up to a schedule",
        "warm-up in place of a schedule",
        "warm-up to the flag's schedule",
    ],
)
def test_flags_set_a_schedule(own, flags, expected, make):
    given = optimizers.Adam(own, beta_1=0.75, name="mine")
    changed = make(given, **flags)
    assert rates(changed, 0, 50) == expected
    assert isinstance(changed._learning_rate, schedules.Schedule)
    assert (changed.name, changed.beta_1) == ("mine", 0.75)


def test_an_optimizer_with_a_schedule_of_flags_trains(make):
    changed = make(optimizers.SGD(0.5), warmup_steps=2)
    weight = keras.Variable([1.0])
    changed.build([weight])
    changed.apply([tf.ones([1])], [weight])  # at a rate of 0
    assert float(weight[0]) == 1
    changed.apply([tf.ones([1])], [weight])
    assert float(weight[0]) == 0.75


def test_what_is_not_to_decay_stays_out_of_it_with_a_schedule(make):
    given = optimizers.SGD(0.5, weight_decay=0.5)
    given.exclude_from_weight_decay(var_names=["bias"])
    changed = make(given, learning_rate_schedule="cosine")
    bias, kernel = (keras.Variable([1.0], name=name) for name in ("bias", "kernel"))
    changed.apply([tf.zeros([1]), tf.zeros([1])], [bias, kernel])
    assert float(bias[0]) == 1
    assert float(kernel[0]) < 1


class Silent(optimizers.SGD):
    """One that does not say what it is made of."""

    def __init__(self, rate, secret):
        super().__init__(rate)
        self.secret = secret


class SilentSchedule(optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.5


@pytest.mark.parametrize(
    ("own", "flags"),
    [
        (lambda: Silent(0.5, 7), {"warmup_steps": 10}),
        (lambda: Silent(0.5, 7), {"learning_rate_schedule": "cosine"}),
        (lambda: optimizers.SGD(SilentSchedule()), {"learning_rate": 0.25}),
        (lambda: optimizers.SGD(SilentSchedule()), {"warmup_steps": 10}),
    ],
    ids=["warm-up", "schedule", "own schedule", "own schedule, warm-up"],
)
def test_an_optimizer_that_cannot_be_made_again_is_named(own, flags, make):
    own = own()
    with pytest.raises(errors.UsageError) as caught:
        make(own, **flags)
    message = str(caught.value)
    assert message.startswith(f"The rate of {type(own).__name__} cannot be replaced: ")
    assert "get_config" in message
    assert "\n" not in message


def test_such_an_optimizer_is_taken_as_it_is_where_nothing_is_replaced(make):
    own = Silent(0.5, 7)
    assert make(own) is own
    assert make(own, learning_rate=0.25) is own
    assert rates(own, 0) == [0.25]


# Clipping and decay.


@pytest.mark.parametrize(
    "own",
    [{}, {"clipnorm": 9.0}, {"clipvalue": 9.0}, {"global_clipnorm": 9.0}],
    ids=str,
)
def test_a_flag_clips_gradients_as_a_whole(own, make):
    changed = make(optimizers.SGD(1.0, **own), clip_norm=1.0)
    weights = [keras.Variable([0.0]), keras.Variable([0.0])]
    changed.build(weights)
    changed.apply([tf.constant([3.0]), tf.constant([4.0])], weights)
    np.testing.assert_allclose([w.numpy()[0] for w in weights], [-0.6, -0.8], rtol=1e-6)


@pytest.mark.parametrize(
    ("own", "flag", "expected"),
    [(None, 0.5, 0.75), (0.25, 0.5, 0.75), (0.25, 0.0, 1.0)],
    ids=["new", "another", "none"],
)
def test_a_flag_sets_the_decay_of_weights(own, flag, expected, make):
    changed = make(optimizers.SGD(0.5, weight_decay=own), weight_decay=flag)
    weight = keras.Variable([1.0])
    changed.build([weight])
    changed.apply([tf.zeros([1])], [weight])
    assert float(weight[0]) == expected


def test_clipping_and_decay_go_with_a_schedule(make):
    flags = {"clip_norm": 2.0, "weight_decay": 0.5, "warmup_steps": 10}
    changed = make(optimizers.AdamW(0.5, clipnorm=1.0), **flags)
    assert (changed.global_clipnorm, changed.clipnorm) == (2.0, None)
    assert changed.weight_decay == 0.5
    assert rates(changed, 5) == [0.25]


# Precision.


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_layers_compute_in_a_precision_and_weights_are_float32(precision, problem):
    before = keras.config.dtype_policy()
    model = parts.build_model(problem.experiment(), SPEC, precision)
    assert {layer.compute_dtype for layer in model.layers} == {precision}
    assert {variable.dtype for variable in model.variables} == {"float32"}
    assert keras.config.dtype_policy() is before


def test_a_layer_that_says_its_precision_has_that(problem):
    def model():
        own = keras.layers.Dense(1, dtype="float32")
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), own])

    built = parts.build_model(problem.experiment(model=model), SPEC, "bfloat16")
    assert [layer.compute_dtype for layer in built.layers] == ["bfloat16", "float32"]


def test_a_model_that_fails_leaves_no_precision_behind(problem):
    def model():
        raise RuntimeError("boom")

    before = keras.config.dtype_policy()
    with pytest.raises(RuntimeError):
        parts.build_model(problem.experiment(model=model), SPEC, "float16")
    assert keras.config.dtype_policy() is before


@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_what_computes_in_float16_needs_the_flag(precision, problem):
    def model():
        inner = [keras.Input((4,)), keras.layers.Dense(1, dtype="mixed_float16")]
        return keras.Sequential([keras.Input((4,)), keras.Sequential(inner)])

    experiment = problem.experiment(model=model)
    with pytest.raises(errors.UsageError, match="--mixed_precision=float16"):
        parts.build_model(experiment, SPEC, precision)
    assert parts.build_model(experiment, SPEC, "float16").variables


# Weights that are no numbers.


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
def test_a_weight_that_is_no_number_is_found_by_name(value, problem, config):
    trainer = LocalTrainer(problem.experiment(), config)
    assert trainer.find_bad_weight() is None
    bias = trainer.checkpoint.model.layers[1].bias
    bias.assign([value])
    assert trainer.find_bad_weight() == bias.path
    bias.assign([0.0])
    assert trainer.find_bad_weight() is None
