"""Losses and metrics: the same numbers as Keras' own, by output."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.experiment import Experiment
from dtrain.runtime.collectives import Group
from dtrain.strategies import keras_ways
from dtrain.strategies.evaluation import Evaluation
from dtrain.strategies.objective import Objective, _mean_loss, unpack

MSE = keras.losses.MeanSquaredError
MAE = keras.losses.MeanAbsoluteError

# Two outputs of three examples each, with losses that are easy to see.
Y = [tf.constant([[0.0], [0.0], [0.0]]), tf.constant([[0.0], [0.0], [0.0]])]
PRED = [tf.constant([[1.0], [2.0], [3.0]]), tf.constant([[10.0], [20.0], [30.0]])]
NAMES = ["a", "b"]


def make(loss=None, metrics=list, loss_weights=None, names=NAMES, y=Y, y_pred=PRED):
    experiment = Experiment(
        model=list,
        optimizer=list,
        loss=loss or MAE(),
        train_data=list,
        metrics=metrics,
        loss_weights=loss_weights,
    )
    return Objective(experiment, names, y, y_pred)


def one(**fields):
    return make(names=["a"], y=Y[0], y_pred=PRED[0], **fields)


def message_of(function, *args, **kwargs):
    with pytest.raises(errors.UsageError) as caught:
        function(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def measured(objective, *batches):
    """Results over (y, y_pred[, sample_weight]) batches, as a strategy makes them."""
    states, loss = objective.initial_states(), tf.zeros([])
    for batch in batches:
        y, y_pred, weight = unpack(batch) if len(batch) == 3 else (*batch, None)
        loss += objective.loss(y, y_pred, weight, [])
        states = objective.update(states, y, y_pred)
    return objective.results(objective.pack(loss, states).numpy(), len(batches))


# Losses.


@pytest.mark.parametrize(
    ("loss", "weights", "expected"),
    [
        ([MAE(), MAE()], None, 2 + 20),
        ([MAE(), MSE()], None, 2 + 1400 / 3),
        ((MAE(), None), None, 2),
        ({"a": MAE(), "b": MAE()}, None, 22),
        ({"b": MAE()}, None, 20),
        ([MAE(), MAE()], [1, 0.5], 12),
        ([MAE(), MAE()], {"b": 0.1}, 4),
        ({"b": MAE(), "a": MSE()}, {"a": 3, "b": 2}, 3 * 14 / 3 + 40),
    ],
)
def test_losses_by_output_are_weighted_and_added(loss, weights, expected):
    objective = make(loss=loss, loss_weights=weights)
    assert float(objective.loss(Y, PRED, None, [])) == pytest.approx(expected)


def test_what_the_model_adds_counts():
    objective = one(loss=MAE())
    added = [tf.constant(0.25), tf.constant(0.5, tf.float16)]
    assert float(objective.loss(Y[0], PRED[0], None, added)) == pytest.approx(2.75)


@pytest.mark.parametrize("y", [dict(zip(NAMES, Y, strict=True)), Y, tuple(Y)], ids=type)
def test_outputs_may_come_as_a_list_or_a_dict(y):
    y_pred = dict(zip(NAMES, PRED, strict=True))
    objective = make(loss={"a": MAE(), "b": MAE()}, y=y, y_pred=y_pred)
    assert float(objective.loss(y, y_pred, None, [])) == pytest.approx(22)


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (tf.constant([1.0, 0.0, 0.0]), (1 + 10) / 3),
        ([tf.constant([0.0, 0.0, 1.0]), tf.constant([0.0, 3.0, 0.0])], 3 / 3 + 60 / 3),
        ({"b": tf.constant([0.0, 0.0, 1.0]), "a": tf.constant([0.0] * 3)}, 30 / 3),
    ],
    ids=["for all", "list", "dict"],
)
def test_sample_weights_are_for_all_outputs_or_by_output(weight, expected):
    objective = make(loss=[MAE(), MAE()])
    assert float(objective.loss(Y, PRED, weight, [])) == pytest.approx(expected)


def distance(y, y_pred):
    return tf.reduce_sum(tf.abs(y - y_pred), -1)


def elementwise(y, y_pred):
    return tf.abs(y - y_pred)


@pytest.mark.parametrize(
    "loss", [distance, elementwise, keras.losses.mean_squared_error]
)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("y_shape", [(3, 3), (3, 1), (3,)], ids=str)
def test_a_function_as_loss_gives_what_it_gives_in_keras(loss, weighted, y_shape):
    width = (*y_shape, 1)[1]
    generator = np.random.default_rng(0)
    y = generator.normal(size=y_shape).astype(np.float32)
    y_pred = generator.normal(size=(3, width)).astype(np.float32)
    weight = np.array([0.0, 1.0, 3.0], np.float32) if weighted else None
    model = keras.Sequential([keras.Input((width,)), keras.layers.Identity()])
    model.compile(loss=loss)
    # Keras would spread (3,) over the columns of a loss of (3, 3), not the examples.
    column = (
        weight[:, None] if weighted and width == 3 and loss is elementwise else None
    )
    expected = model.evaluate(
        y_pred, y, sample_weight=weight if column is None else column, verbose=0
    )
    objective = make(loss=loss, names=["a"], y=y, y_pred=y_pred)
    ours = objective.loss(y, tf.constant(y_pred), weight, [])
    assert float(ours) == pytest.approx(expected, rel=1e-5)


# Losses of several replicas.


@pytest.fixture(scope="module")
def pair():
    """Two replicas in this process."""
    return Group(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))


def by_replica(pair, own):
    """What a function gives on each of two replicas, where no loss is scaled."""

    def unscaled(k):
        with keras_ways.unscaled_losses():
            return own(k)

    values = tf.function(lambda: pair.each(unscaled), autograph=False)()
    return [float(value) for value in values]


LOSSES = {
    "keras": MSE(),
    "mean": MSE(reduction="mean"),
    "weighted mean": MSE(reduction="mean_with_sample_weight"),
    "none": MSE(reduction="none"),
    "None": MAE(reduction=None),
    "cosine": keras.losses.CosineSimilarity(),
    "crossentropy": keras.losses.BinaryCrossentropy(from_logits=True),
    "function": keras.losses.mean_squared_error,
    "elementwise": elementwise,
    "sum": MSE(reduction="sum"),
}


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_replica_s_loss_is_what_it_is_without_others(loss, weighted, pair):
    generator = np.random.default_rng(0)
    y = tf.constant(generator.integers(0, 2, size=(2, 5, 3)), tf.float32)
    y_pred = tf.constant(generator.normal(size=(2, 5, 3)), tf.float32)
    weight = tf.constant(generator.uniform(size=(2, 5)), tf.float32)
    objective = make(loss=loss, names=["a"], y=y[0], y_pred=y_pred[0])

    def own(k):
        return objective.loss(y[k], y_pred[k], weight[k] if weighted else None, [])

    assert float(own(0)) != float(own(1))
    expected = [float(own(k)) for k in range(2)]
    assert by_replica(pair, own) == pytest.approx(expected, rel=1e-5)


def test_a_loss_that_is_one_number_is_what_it_is_without_others(pair):
    y, y_pred = tf.abs(PRED[0]) / 5, tf.sigmoid(PRED[0])

    def own(k):
        return _mean_loss(keras.losses.Dice(), y, y_pred, None)

    assert by_replica(pair, own) == pytest.approx([float(own(0))] * 2, rel=1e-6)


def test_a_loss_of_structures_is_what_it_is_without_others(pair):
    class OfTwo(keras.losses.Loss):
        def call(self, y, y_pred):
            return tf.reduce_mean(abs(y["a"] - y_pred["a"]) * y["b"], -1)

    y = {"a": Y[0], "b": PRED[1]}
    y_pred = {"a": PRED[0], "b": PRED[1]}

    def own(k):
        return _mean_loss(OfTwo(), y, y_pred, None)

    assert by_replica(pair, own) == pytest.approx([float(own(0))] * 2, rel=1e-6)


def test_keras_alone_would_divide_it_by_their_number(pair):
    """If this fails, Keras has changed, and `keras_ways` has to follow."""

    def own(k):
        return MSE()(Y[0], PRED[0])

    scaled = tf.function(lambda: pair.each(own), autograph=False)()
    whole = float(own(0))
    assert [float(value) for value in scaled] == pytest.approx([whole / 2] * 2)
    assert by_replica(pair, own) == pytest.approx([whole] * 2)
    # And whoever trains with Keras in the same process has it again.
    scaled = tf.function(lambda: pair.each(own), autograph=False)()
    assert [float(value) for value in scaled] == pytest.approx([whole / 2] * 2)


@pytest.mark.parametrize(
    "loss", [MSE(reduction="sum"), [MAE(), MAE(reduction="sum")]], ids=["one", "two"]
)
def test_a_sum_depends_on_how_a_batch_is_divided(loss):
    objective = make(loss=loss) if isinstance(loss, list) else one(loss=loss)
    objective.check_mean(1)
    message = message_of(objective.check_mean, 6)
    assert "(reduction='sum')" in message
    assert "6 parts" in message


@pytest.mark.parametrize(
    "loss",
    [MSE(), MSE(reduction=None), distance],
    ids=["mean", "each", "function"],
)
def test_means_do_not_depend_on_it(loss):
    one(loss=loss).check_mean(6)


# Metrics.


def mean_error(name="error"):
    return keras.metrics.MeanAbsoluteError(name=name)


@pytest.mark.parametrize(
    ("metrics", "names"),
    [
        (lambda: [mean_error(), None], ["a_error"]),
        (
            lambda: [[mean_error(), mean_error("e2")], [mean_error()]],
            ["a_error", "a_e2", "b_error"],
        ),
        (lambda: {"b": mean_error()}, ["b_error"]),
        (lambda: {"b": [mean_error()], "a": [mean_error()]}, ["a_error", "b_error"]),
        (list, []),
    ],
)
def test_metrics_of_several_outputs_are_named_by_output(metrics, names):
    objective = make(loss=[MAE(), MAE()], metrics=metrics)
    assert objective.metric_names == names
    results = measured(objective, (Y, PRED))
    assert list(results) == ["loss", *names]
    expected = {"a": 2, "b": 20}
    assert results == pytest.approx(
        {"loss": 22} | {name: expected[name[0]] for name in names}
    )


def test_the_metric_of_one_output_keeps_its_name():
    objective = one(metrics=lambda: [mean_error()])
    assert objective.metric_names == ["error"]
    assert measured(objective, (Y[0], PRED[0]))["error"] == pytest.approx(2)


def test_states_of_several_workers_add_up():
    objective = one(loss=MSE(), metrics=lambda: [mean_error()])
    first = (Y[0], PRED[0])
    second = (Y[0][:1], tf.constant([[50.0]]))
    totals = [
        objective.pack(
            objective.loss(*batch, None, []),
            objective.update(objective.initial_states(), *batch),
        ).numpy()
        for batch in (first, second)
    ]
    together = objective.results(totals[0] + totals[1], 2)
    assert together == pytest.approx(measured(objective, first, second))
    # By examples, not by batches: (1 + 2 + 3 + 50) / 4.
    assert together["error"] == pytest.approx(14)


def test_building_the_metrics_leaves_nothing_in_them():
    objective = one(metrics=lambda: [mean_error()])
    assert all(not np.any(state) for state in objective.initial_states())


def test_a_metric_with_several_results_gives_them_all():
    class Both(keras.metrics.Mean):
        def update_state(self, y, y_pred, sample_weight=None):
            super().update_state(y_pred)

        def result(self):
            return {"mean": super().result(), "twice": 2 * super().result()}

    objective = one(metrics=lambda: [Both()])
    results = measured(objective, (Y[0], PRED[0]))
    assert results == pytest.approx({"loss": 2, "mean": 2, "twice": 4})


# What does not fit.


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"loss": {"c": MAE()}}, ["loss=", "'c'", "a, b"]),
        ({"loss": MAE()}, ["loss=", "2 outputs", "a, b"]),
        ({"loss": [MAE()]}, ["loss=", "2 outputs", "list of 2"]),
        ({"loss": [MAE()] * 3}, ["loss=", "2 outputs"]),
        ({"loss_weights": {"heads": 1.0}}, ["loss_weights=", "'heads'"]),
        ({"loss_weights": [1.0]}, ["loss_weights=", "2 outputs"]),
        ({"metrics": lambda: [mean_error()]}, ["metrics=", "2 outputs"]),
        ({"metrics": lambda: {"c": mean_error()}}, ["metrics=", "'c'", "a, b"]),
        ({"metrics": lambda: ["mae", "mae"]}, ["metrics=", "'mae'", "keras.metrics"]),
    ],
)
def test_what_does_not_fit_the_outputs_is_named(fields, parts):
    message = message_of(make, **{"loss": [MAE(), MAE()], **fields})
    assert not [part for part in parts if part not in message], message


def test_an_output_that_is_misspelt_gets_a_suggestion():
    y_pred = {"label": PRED[0], "box": PRED[1]}
    message = message_of(make, loss={"lable": MAE()}, y=y_pred, y_pred=y_pred)
    assert "Did you mean label?" in message


@pytest.mark.parametrize(
    "fields",
    [{"loss": [MAE(), MAE()]}, {"loss_weights": [0.5, 0.5]}],
)
def test_a_list_that_is_too_long_for_one_output_is_named(fields):
    (name,) = fields
    assert f"{name}=" in message_of(one, **fields)


@pytest.mark.parametrize("loss", ["mse", 3], ids=str)
def test_a_loss_that_cannot_be_called_is_named(loss):
    assert repr(loss) in message_of(one, loss=loss)


def test_a_metric_that_does_not_fit_the_model_is_named():
    accuracy = keras.metrics.SparseCategoricalAccuracy
    with pytest.raises(errors.UsageError, match="Metric 'top' does not fit"):
        make(
            metrics=lambda: [accuracy(name="top")],
            names=["a"],
            y=tf.zeros([3, 4], tf.int64),
            y_pred=tf.zeros([2, 5]),
        )


def test_a_metric_that_does_not_start_at_zero_is_refused():
    class Largest(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="largest")
            self.value = self.add_weight(initializer=lambda *a, **k: tf.constant(-1.0))

        def update_state(self, y, y_pred, sample_weight=None):
            self.value.assign(tf.maximum(self.value, tf.reduce_max(y_pred)))

        def result(self):
            return self.value

        def reset_state(self):
            self.value.assign(-1.0)

    assert "zero" in message_of(one, metrics=lambda: [Largest()])


@pytest.mark.parametrize(
    "metrics",
    [
        lambda: [mean_error("loss")],
        lambda: [mean_error(), mean_error()],
        lambda: [mean_error("examples")],
    ],
    ids=["loss", "twice", "examples"],
)
def test_a_metric_whose_name_is_taken_is_refused(metrics):
    message_of(one, metrics=metrics)


@pytest.mark.parametrize(
    ("y", "parts"),
    [
        ({"a": Y[0]}, ["labels", "no 'b'", "a, b"]),
        (Y[:1], ["labels", "list of 1", "2 outputs"]),
        (Y[0], ["labels", "2 outputs"]),
    ],
    ids=["dict", "list", "tensor"],
)
def test_labels_that_do_not_fit_the_outputs_are_named(y, parts):
    message = message_of(make(loss=[MAE(), MAE()]).loss, y, PRED, None, [])
    assert not [part for part in parts if part not in message], message


# Batches.


@pytest.mark.parametrize(
    ("batch", "parts"),
    [((1, 2), (1, 2, None)), ((1, 2, 3), (1, 2, 3))],
)
def test_unpack(batch, parts):
    assert unpack(batch) == parts


@pytest.mark.parametrize("batch", [{"x": 1}, (1,), (1, 2, 3, 4), [1, 2], 5], ids=repr)
def test_a_batch_that_is_no_pair_is_refused(batch):
    assert "Give tuples (x, y)" in message_of(unpack, batch)


# All of it together, against Keras.


@pytest.mark.parametrize("weighted", [False, True])
def test_an_evaluation_gives_what_keras_gives(problem, weighted):
    """With a regularizer, a last batch that is not full, and sample weights."""
    l2 = keras.regularizers.L2(0.1)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(3, activation="relu", kernel_regularizer=l2),
            keras.layers.ActivityRegularization(l1=0.01),
            keras.layers.Dense(1),
        ]
    )
    weights = np.linspace(0, 2, 90, dtype=np.float32)
    columns = (problem.x[:90], problem.y[:90], *([weights] * weighted))
    data = tf.data.Dataset.from_tensor_slices(columns).batch(32)

    loss = MSE()
    model.compile(loss=loss, metrics=[mean_error()])
    expected = model.evaluate(data, verbose=0, return_dict=True)

    experiment = problem.experiment(
        eval_data=lambda: data, metrics=lambda: [mean_error()], loss=loss
    )
    objective = Objective(experiment, [], problem.y[:1], model(problem.x[:1]))
    evaluation = Evaluation(experiment, model, objective, batch_size=8)
    assert evaluation.run(lambda: False) == pytest.approx(
        {**expected, "examples": 90}, rel=1e-5
    )
    # Again, with other weights, and nothing left over from before.
    model.layers[0].kernel.assign(model.layers[0].kernel * 2)
    expected = model.evaluate(data, verbose=0, return_dict=True)
    assert evaluation.run(lambda: False) == pytest.approx(
        {**expected, "examples": 90}, rel=1e-5
    )


def test_an_evaluation_changes_nothing_in_the_model(problem):
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
    )
    before = [variable.numpy() for variable in model.variables]
    experiment = problem.experiment(eval_data=problem.data)
    objective = Objective(experiment, [], problem.y[:1], model(problem.x[:1]))
    evaluation = Evaluation(experiment, model, objective, batch_size=8)
    assert evaluation.run(lambda: False) == evaluation.run(lambda: False)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_an_evaluation_without_an_example_fails(problem):
    experiment = problem.experiment(eval_data=lambda: problem.data().take(0))
    objective = Objective(experiment, [], problem.y[:1], problem.y[:1])
    evaluation = Evaluation(experiment, problem.model(), objective, batch_size=8)
    with pytest.raises(errors.TrainingFailed, match="no example"):
        evaluation.run(lambda: False)
