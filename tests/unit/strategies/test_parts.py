"""What the factories of an experiment make: checked, and changed by flags."""

import keras
import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.strategies import parts

optimizers, schedules = keras.optimizers, keras.optimizers.schedules


@pytest.fixture
def make(problem, config):
    """A function that makes an optimizer as an experiment and flags say."""

    def make(own, /, **flags):
        experiment = problem.experiment(optimizer=lambda: own)
        return parts.make_optimizer(experiment, config.replace(**flags))

    return make


def message_of(function, *args, **kwargs):
    with pytest.raises(errors.UsageError) as caught:
        function(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_parts(message, parts):
    assert not [part for part in parts if part not in message], message


# Optimizers.


def test_the_experiments_optimizer_is_taken_as_it_is(make):
    optimizer = optimizers.Adam(0.25)
    assert make(optimizer) is optimizer


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("adam", optimizers.Adam),
        ("Adam", optimizers.Adam),
        ("sgd", optimizers.SGD),
        ("adamw", optimizers.AdamW),
        ("RMSprop", optimizers.RMSprop),
    ],
)
def test_a_flag_puts_another_optimizer_in_its_place(name, kind, make):
    optimizer = make(optimizers.SGD(0.25), optimizer=name)
    assert type(optimizer) is kind
    assert parts.rate_at(optimizer, 0) == parts.rate_at(kind(), 0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("adm", ["--optimizer=adm", "adamw", "sgd", "Did you mean adam?"]),
        ("gradient", ["--optimizer=gradient", "adamw", "sgd"]),
        ("Optimizer", ["--optimizer=Optimizer"]),
        ("LossScaleOptimizer", ["LossScaleOptimizer"]),
        ("MultiOptimizer", ["MultiOptimizer"]),
    ],
)
def test_an_optimizer_that_is_unknown_is_named(name, expected, make):
    assert_parts(message_of(make, optimizers.SGD(), optimizer=name), expected)


@pytest.mark.parametrize("result", [None, "adam", optimizers.SGD], ids=repr)
def test_a_factory_that_makes_no_optimizer_is_named(result, make):
    assert_parts(message_of(make, result), ["optimizer=", repr(result)])


@pytest.mark.parametrize("flags", [{}, {"learning_rate": 0.1}], ids=["own", "rate"])
def test_what_scales_the_loss_is_refused(flags, make):
    optimizer = optimizers.LossScaleOptimizer(optimizers.SGD())
    message = message_of(make, optimizer, **flags)
    assert_parts(message, ["LossScaleOptimizer", "--mixed_precision=float16"])


def test_what_accumulates_gradients_by_itself_is_refused(make):
    optimizer = optimizers.SGD(gradient_accumulation_steps=4)
    assert_parts(message_of(make, optimizer), ["accumulation_steps=4", "--batch_size"])


# Learning rates.


def rates(optimizer, *steps):
    return [round(parts.rate_at(optimizer, step), 6) for step in steps]


def cosine(rate):
    return schedules.CosineDecay(rate, 100)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (0.5, [0.5, 0.5]),
        (cosine(0.5), [0.5, 0.25]),
        (schedules.PolynomialDecay(0.5, 100, 0.0), [0.5, 0.25]),
    ],
    ids=["constant", "cosine", "polynomial"],
)
def test_the_rate_of_a_step(rate, expected):
    optimizer = optimizers.SGD(rate)
    assert rates(optimizer, 0, 50) == expected
    assert int(optimizer.iterations) == 0


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (0.5, [0.125, 0.125]),
        (cosine(0.5), [0.125, 0.125]),  # not made from the flag: replaced
        (cosine(0.125), [0.125, 0.0625]),  # made from it: kept
        (schedules.PiecewiseConstantDecay([1], [1.0, 0.125]), [0.125, 0.125]),
        # The flag is the start of a schedule, not any number in it.
        (schedules.ExponentialDecay(0.5, 100, 0.125), [0.125, 0.125]),
        (schedules.CosineDecay(0.5, 100, alpha=0.125), [0.125, 0.125]),
    ],
    ids=["constant", "cosine", "from the flag", "pieces", "decay rate", "alpha"],
)
def test_a_flag_sets_the_rate(rate, expected, make):
    optimizer = make(optimizers.SGD(rate, momentum=0.5), learning_rate=0.125)
    assert rates(optimizer, 0, 50) == expected
    assert optimizer.momentum == 0.5


def test_a_rate_of_one_is_no_switch_of_a_schedule(make):
    decay = schedules.ExponentialDecay(0.5, 100, 0.5, staircase=True)
    assert rates(make(optimizers.SGD(decay), learning_rate=1.0), 0, 200) == [1, 1]


def test_a_flag_sets_the_rate_of_a_flags_optimizer(make):
    optimizer = make(optimizers.SGD(0.5), optimizer="adam", learning_rate=0.125)
    assert type(optimizer) is optimizers.Adam
    assert rates(optimizer, 0) == [0.125]


def test_all_else_of_the_optimizer_stays(make):
    given = optimizers.Adam(0.5, beta_1=0.75, clipnorm=2.0, name="mine")
    changed = make(given, learning_rate=0.125)
    assert changed.get_config() == {**given.get_config(), "learning_rate": 0.125}


def test_what_is_not_to_decay_stays_out_of_it(make):
    given = optimizers.SGD(0.5, weight_decay=0.5)
    given.exclude_from_weight_decay(var_names=["bias"])
    changed = make(given, learning_rate=0.125)
    bias, kernel = (keras.Variable([1.0], name=name) for name in ("bias", "kernel"))
    changed.apply([tf.zeros([1]), tf.zeros([1])], [bias, kernel])
    assert float(bias[0]) == 1
    assert float(kernel[0]) < 1


# Models.

SPEC = (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1]))


class Plain(keras.Model):
    """A model that learns the shape of its input from its first call."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        return self.dense(x)


@pytest.mark.parametrize(
    "factory",
    [
        lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]),
        lambda: keras.Sequential([keras.layers.Dense(3)]),
        Plain,
    ],
    ids=["known input", "unknown input", "own class"],
)
def test_a_model_is_built_for_the_data(factory, problem):
    model = parts.build_model(problem.experiment(model=factory), SPEC)
    shapes = [tuple(variable.shape) for variable in model.variables]
    assert shapes == [(4, 3), (3,)]


def test_a_model_of_several_inputs_is_built_for_the_data(problem):
    class Both(Plain):
        def call(self, x):
            return self.dense(keras.ops.concatenate([x["a"], x["b"]], -1))

    x = {"a": tf.TensorSpec([None, 3]), "b": tf.TensorSpec([None, 1])}
    model = parts.build_model(problem.experiment(model=Both), (x, SPEC[1]))
    assert tuple(model.variables[0].shape) == (4, 3)


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        (lambda: None, ["model=", "NoneType"]),
        (lambda: keras.layers.Dense(1), ["model=", "Dense"]),
        (
            lambda: keras.Sequential([keras.Input((4,)), keras.layers.Flatten()]),
            ["no trainable weights"],
        ),
    ],
    ids=["none", "layer", "no weights"],
)
def test_what_cannot_be_trained_is_refused(factory, expected, problem):
    experiment = problem.experiment(model=factory)
    assert_parts(message_of(parts.build_model, experiment, SPEC), expected)


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        (tf.TensorSpec([None, 4]), [1, 4]),
        (tf.TensorSpec([32, 4]), [1, 4]),
        (tf.TensorSpec([None, None, 3]), [1, 1, 3]),
        (tf.TensorSpec([None]), [1]),
    ],
    ids=str,
)
def test_an_example_of_zeros(spec, shape):
    zeros = parts.example_of_zeros({"x": spec})["x"]
    assert zeros.shape == shape
    assert zeros.dtype == spec.dtype


def test_an_objective_knows_the_models_outputs_by_name(problem):
    inputs = keras.Input((4,))
    outputs = [keras.layers.Dense(1, name=name)(inputs) for name in ("u", "v")]
    model = keras.Model(inputs, outputs)
    experiment = problem.experiment(
        loss={"v": keras.losses.MeanSquaredError()},
        metrics=lambda: {"u": keras.metrics.MeanAbsoluteError(name="error")},
    )
    spec = (SPEC[0], {"u": SPEC[1], "v": SPEC[1]})
    objective = parts.make_objective(experiment, model, spec)
    assert objective.metric_names == ["u_error"]
