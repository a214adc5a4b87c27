"""One checkpoint looked at without training: evaluated, exported, or refused."""

import io
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from dtrain import assessment as assessment_lib
from dtrain import errors, evaluator
from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.experiment import Experiment
from dtrain.launch.signals import Signals
from dtrain.session.checkpoints import Checkpoints
from dtrain.strategies import parts

layers = keras.layers


def build(units=1):
    return keras.Sequential(
        [
            keras.Input((1,)),
            layers.Dense(units, use_bias=False, name="only"),
            layers.Dropout(0.5),
        ]
    )


def experiment(config, **changes):
    """A model that says w for 1, where 0 is right: its loss is the square of w."""
    data = np.ones((10, 1), np.float32), np.zeros((10, 1), np.float32)
    fields = {
        "model": build,
        "optimizer": keras.optimizers.SGD,
        "loss": keras.losses.MeanSquaredError(),
        "train_data": lambda: data,
        "eval_data": lambda: data,
        "metrics": lambda: [keras.metrics.MeanAbsoluteError(name="mae")],
    }
    return Experiment(**{**fields, **changes})


def save(folder, step, weight, model=None):
    """Saves a checkpoint as a run does."""
    model = model or build()
    for variable in model.trainable_variables:
        variable.assign(np.full(variable.shape, weight))
    optimizer = keras.optimizers.SGD(momentum=0.5)
    optimizer.build(model.trainable_variables)
    counter = tf.Variable(step, dtype=tf.int64)
    place = tf.Variable([0, 0, 0], dtype=tf.int64)
    checkpoint = parts.make_checkpoint(model, optimizer, counter, place, None)
    console = Console(io.StringIO())
    return Checkpoints(str(folder), checkpoint, None, 5, 0, console).save(step)


@pytest.fixture
def assess(tmp_path):
    """A function that does what `--mode` says; returns result and lines."""

    def assess(mode="eval", function=experiment, signals=None, **options):
        terminal = io.StringIO()
        config = RunConfig(
            mode=mode,
            strategy="local",
            experiment="mine:f",
            model_dir=str(tmp_path),
            batch_size=4,
            **options,
        )
        result = evaluator.assess(
            function, config, Console(terminal), signals or Signals()
        )
        return result, terminal.getvalue().splitlines()

    return assess


# Evaluating.


def test_the_newest_checkpoint_is_evaluated(assess, tmp_path):
    save(tmp_path, 9, 1.0)
    path = save(tmp_path, 10, 0.5)
    result, lines = assess()
    assert set(result.pop("versions")) == {"dtrain", "tensorflow", "keras"}
    assert result == {
        "mode": "eval",
        "experiment": "mine:f",
        "global_step": 10,
        "checkpoint": path,
        "eval": {"loss": 0.25, "mae": 0.5, "examples": 10},
    }
    assert lines == [f"Evaluation of {path}: loss 0.2500  mae 0.5000 on 10 examples"]


class Listed(keras.Model):
    """TensorFlow does not look for layers in lists."""

    def __init__(self):
        super().__init__()
        self.parts = [layers.Dense(1, use_bias=False) for _ in range(2)]

    def call(self, x):
        return self.parts[1](self.parts[0](x))


def test_layers_in_lists_have_a_checkpoint_s_weights_too(assess, tmp_path):
    model = Listed()
    model(tf.zeros([1, 1]))
    save(tmp_path, 10, 0.5, model)
    result, _ = assess(function=lambda config: experiment(config, model=Listed))
    assert result["eval"]["loss"] == 0.5**4


def test_an_evaluation_is_in_the_summaries(assess, tmp_path):
    save(tmp_path, 10, 0.5)
    assess()
    found = {}
    for path in (tmp_path / "eval").glob("events.*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    assert found == {("eval/loss", 10): 0.25, ("eval/mae", 10): 0.5}


def test_checkpoints_are_only_read(assess, tmp_path):
    def contents():
        return {path.name: path.read_bytes() for path in tmp_path.glob("c*")}

    save(tmp_path, 10, 0.5)
    before = contents()
    assess()
    assess("export")
    assert contents() == before


def test_a_signal_ends_an_evaluation(assess, tmp_path):
    save(tmp_path, 10, 0.5)
    signals = Signals()
    signals.received.append(15)
    with pytest.raises(errors.Interrupted) as caught:
        assess(signals=signals)
    assert caught.value.exit_status == 143
    assert not (tmp_path / "eval").exists()


# Exporting.


@pytest.mark.parametrize("is_given", [False, True])
def test_the_newest_checkpoint_is_exported(is_given, assess, tmp_path):
    save(tmp_path, 9, 1.0)
    path = save(tmp_path, 10, 0.5)
    folder = tmp_path / ("mine" if is_given else "export")
    options = {"export_dir": str(folder)} if is_given else {}
    result, lines = assess("export", **options)
    files = [str(folder / name) for name in ("model.keras", "saved_model")]
    assert result["export"] == files
    assert "eval" not in result
    assert (result["mode"], result["global_step"]) == ("export", 10)
    assert lines == [f"Exported {path}: {', '.join(files)}"]
    loaded = tf.saved_model.load(str(folder / "saved_model"))
    assert loaded.serve(tf.ones([3, 1])).numpy().tolist() == [[0.5]] * 3
    model = keras.saving.load_model(folder / "model.keras")
    assert model(tf.ones([1, 1])).numpy().tolist() == [[0.5]]


# What cannot be assessed.


@pytest.mark.parametrize("mode", ["eval", "export"])
def test_without_a_checkpoint_there_is_nothing_to_do(mode, assess, tmp_path):
    with pytest.raises(errors.UsageError, match=f"={tmp_path} has no checkpoint"):
        assess(mode)


def test_without_evaluation_data_there_is_nothing_to_do(assess, tmp_path):
    save(tmp_path, 10, 0.5)
    with pytest.raises(errors.UsageError, match="mine:f has no eval_data"):
        assess(function=lambda config: experiment(config, eval_data=None))


def deeper():
    return keras.Sequential(
        [keras.Input((1,)), layers.Dense(1), layers.Dense(1, name="last")]
    )


@pytest.mark.parametrize(
    "other", [lambda: build(units=2), deeper], ids=["a shape", "a layer"]
)
def test_a_different_model_is_refused(other, assess, tmp_path):
    path = save(tmp_path, 10, 0.5)
    with pytest.raises(errors.UsageError) as caught:
        assess(function=lambda config: experiment(config, model=other))
    message = str(caught.value)
    assert message.startswith(f"{path} does not fit this model: ")
    assert "--experiment" in message


@pytest.mark.parametrize("ending", [".index", ".data-00000-of-00001"])
def test_a_damaged_checkpoint_is_refused(ending, assess, tmp_path):
    path = save(tmp_path, 10, 0.5)
    with open(path + ending, "r+b") as file:
        file.truncate(10)
    with pytest.raises(errors.UsageError, match=f"{path} is damaged: ."):
        assess()


@pytest.mark.parametrize("mode", ["eval", "export"])
@pytest.mark.parametrize("ending", [".index", ".data-00000-of-00001"])
def test_an_older_one_stands_in_for_those_that_are_damaged(
    ending, mode, assess, tmp_path
):
    paths = [save(tmp_path, step, 0.5) for step in (10, 20, 30)]
    for path in paths[1:]:
        with open(path + ending, "r+b") as file:
            file.truncate(10)
    before = sorted(path.name for path in tmp_path.glob("*ckpt-*"))
    result, lines = assess(mode)
    assert (result["checkpoint"], result["global_step"]) == (paths[0], 10)
    for path, line in zip(reversed(paths[1:]), lines, strict=False):
        assert line.startswith(f"Warning: passed over: {path} is damaged: ")
    assert paths[0] in lines[2]
    # It belongs to who trains: that stays as it is.
    assert sorted(path.name for path in tmp_path.glob("*ckpt-*")) == before


def test_a_checkpoint_that_is_gone_is_told_from_a_damaged_one(tmp_path):
    config = RunConfig(strategy="local", batch_size=4)
    assessment = assessment_lib.Assessment(experiment(config), config)
    assert assessment.metric_names == ["mae"]
    path = save(tmp_path, 10, 0.5)
    assessment.read(path)
    assert assessment.evaluate(lambda: False)["loss"] == 0.25
    assert assessment.evaluate(lambda: True) is None
    os.remove(path + ".index")
    with pytest.raises(FileNotFoundError, match="ckpt-10"):
        assessment.read(path)
    os.remove(path + ".data-00000-of-00001")
    with pytest.raises(FileNotFoundError, match="ckpt-10"):
        assessment.read(path)
