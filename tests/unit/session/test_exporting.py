"""Exported models: others load them without dtrain, and they predict the same."""

import io
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.console import Console
from dtrain.experiment import Experiment
from dtrain.session import exporting
from dtrain.session.callbacks.export import Exporter
from dtrain.strategies import parts

layers = keras.layers

ROWS = np.arange(12, dtype=np.float32).reshape(3, 4) / 12


def spec_of(x, size=None):
    """A batch spec of (x, y) for an example input."""

    def leaf(value):
        return tf.TensorSpec([size, *value.shape[1:]], value.dtype)

    return tf.nest.map_structure(leaf, x), tf.TensorSpec([size, 2])


def export(model, x, folder, size=None):
    terminal = io.StringIO()
    paths = exporting.export(model, spec_of(x, size), str(folder), Console(terminal))
    assert paths == [str(folder / name) for name in sorted(os.listdir(folder))]
    return paths, terminal.getvalue().splitlines()


def serve(folder, x):
    """Returns what the SavedModel predicts, asked as servers ask it."""
    loaded = tf.saved_model.load(str(folder / "saved_model"))
    return tf.nest.map_structure(lambda t: t.numpy(), loaded.serve(x))


def near(one, other):
    return np.allclose(one, other, atol=1e-6)


# Models of every make.


def functional():
    x = keras.Input((4,))
    y = layers.Dropout(0.5)(layers.BatchNormalization()(x))
    return keras.Model(x, layers.Dense(2)(y))


def sequential():
    return keras.Sequential([keras.Input((4,)), layers.Dense(2)])


def two_inputs():
    left, right = keras.Input((4,), name="left"), keras.Input((3,), name="right")
    y = layers.Dense(2)(layers.Concatenate()([left, right]))
    return keras.Model({"left": left, "right": right}, y)


TWO = {"left": ROWS, "right": ROWS[:, :3]}


@keras.saving.register_keras_serializable()
class Own(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.last = layers.Dense(2)

    def call(self, x):
        return self.last(x)


@keras.saving.register_keras_serializable()
class OwnDict(Own):
    def call(self, x):
        return self.last(tf.concat([x["left"], x["right"]], 1))


@keras.saving.register_keras_serializable()
class OwnWords(Own):
    def __init__(self, **options):
        super().__init__(**options)
        self.words = layers.Embedding(12, 3)

    def call(self, x):
        return self.last(tf.reduce_sum(self.words(x), 1))


WORDS = np.arange(12, dtype=np.int32).reshape(3, 4)


def called(model, x):
    model(x)
    return model


MODELS = {
    "functional": (functional, ROWS),
    "sequential": (sequential, ROWS),
    "two inputs": (two_inputs, TWO),
    "subclassed": (lambda: called(Own(), ROWS), ROWS),
    "subclassed with words": (lambda: called(OwnWords(), WORDS), WORDS),
    "subclassed with dict": (lambda: called(OwnDict(), TWO), TWO),
}


@pytest.mark.parametrize("name", MODELS)
def test_both_files_predict_the_same(name, tmp_path):
    make, x = MODELS[name]
    model = make()
    paths, lines = export(model, x, tmp_path)
    assert [os.path.basename(path) for path in paths] == ["model.keras", "saved_model"]
    assert lines == []
    expected = model(x, training=False).numpy()
    assert near(serve(tmp_path, x), expected)
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert near(loaded(x, training=False), expected)


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_takes_any_number_of_examples(name, tmp_path):
    make, x = MODELS[name]
    export(make(), x, tmp_path, size=3)
    one = tf.nest.map_structure(lambda value: value[:1], x)
    assert serve(tmp_path, one).shape == (1, 2)


def test_a_model_that_learns_its_input_from_fixed_batches_takes_any_number(tmp_path):
    experiment = Experiment(
        model=lambda: keras.Sequential([layers.Dense(2)]),
        optimizer=keras.optimizers.SGD,
        loss="mse",
        train_data=lambda: None,
    )
    model = parts.build_model(experiment, spec_of(ROWS, size=8))
    export(model, ROWS, tmp_path, size=8)
    assert serve(tmp_path, ROWS).shape == (3, 2)


# What Keras cannot write.


class Opaque(layers.Layer):
    """One that does not say what it is made of."""

    def __init__(self, thing):
        super().__init__()
        self.thing = thing

    def call(self, x):
        return x * 2


def test_a_model_that_keras_cannot_write_has_a_saved_model(tmp_path):
    x = keras.Input((4,))
    model = keras.Model(x, Opaque(object())(layers.Dense(2)(x)))
    paths, (line,) = export(model, ROWS, tmp_path)
    assert "Warning: Keras cannot write model.keras" in line
    assert "The SavedModel is whole." in line
    assert near(serve(tmp_path, ROWS), model(ROWS).numpy())
    assert paths == [str(tmp_path / "saved_model")]


def test_what_cannot_be_written_leaves_no_older_one_in_its_place(tmp_path):
    export(sequential(), ROWS, tmp_path)
    x = keras.Input((4,))
    model = keras.Model(x, Opaque(object())(layers.Dense(2)(x)))
    terminal = io.StringIO()
    exporting.export(model, spec_of(ROWS), str(tmp_path), Console(terminal))
    assert os.listdir(tmp_path) == ["saved_model"]


# Files.


def test_what_was_there_is_replaced(tmp_path):
    first, second = sequential(), sequential()
    export(first, ROWS, tmp_path)
    export(second, ROWS, tmp_path)
    expected = second(ROWS).numpy()
    assert not near(expected, first(ROWS).numpy())
    assert near(serve(tmp_path, ROWS), expected)
    assert near(keras.saving.load_model(tmp_path / "model.keras")(ROWS), expected)
    assert sorted(os.listdir(tmp_path)) == ["model.keras", "saved_model"]


@pytest.mark.parametrize("method", ["export", "save"])
def test_a_full_disk_fails_the_run_and_leaves_what_was_there(
    method, tmp_path, monkeypatch
):
    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    model = sequential()
    export(model, ROWS, tmp_path)
    expected = model(ROWS).numpy()
    other = sequential()
    monkeypatch.setattr(other, method, fail)
    with pytest.raises(errors.TrainingFailed) as caught:
        export(other, ROWS, tmp_path)
    message = str(caught.value)
    assert f"--export_dir={tmp_path}" in message
    assert "No space left on device" in message
    assert "--mode=export" in message
    assert sorted(os.listdir(tmp_path)) == ["model.keras", "saved_model"]
    assert near(serve(tmp_path, ROWS), expected)


def test_a_folder_that_cannot_be_made_fails_the_run(tmp_path):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "export"
    with pytest.raises(errors.TrainingFailed, match=f"--export_dir={folder}"):
        exporting.export(
            sequential(), spec_of(ROWS), str(folder), Console(io.StringIO())
        )


# In a run.


def test_a_run_exports_when_it_has_ended_well(prepare, make_trainer, tmp_path):
    trainer = make_trainer()
    copied = []

    def copy_model():
        copied.append(trainer.global_step)
        return sequential()

    trainer.copy_model = copy_model
    folder = tmp_path / "export"
    setup = prepare(Exporter(str(folder)), trainer=trainer)
    result = setup.run()
    assert copied == [30]
    names = ("model.keras", "saved_model")
    assert result["export"] == [str(folder / name) for name in names]
    assert serve(folder, ROWS).shape == (3, 2)


def test_a_run_that_fails_exports_nothing(prepare, make_trainer, tmp_path):
    trainer = make_trainer()
    trainer.copy_model = sequential
    setup = prepare(Exporter(str(tmp_path / "export")), trainer=trainer)
    setup.signals.received.append(15)
    with pytest.raises(errors.Interrupted):
        setup.run()
    assert not (tmp_path / "export").exists()
