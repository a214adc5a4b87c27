"""Weights to start from: what is taken by which name, and what is told of it."""

import io
import pathlib
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.console import Console
from dtrain.session import weights
from dtrain.session.callbacks.checkpoint import CheckpointSaver
from dtrain.session.checkpoints import Checkpoints
from dtrain.strategies import parts

layers = keras.layers


def dense(*names, width=2, name="net"):
    """A model of one dense layer a name."""
    return keras.Sequential(
        [keras.Input((width,)), *(layers.Dense(width, name=n) for n in names)],
        name=name,
    )


def fill(model, start=1):
    """Gives each variable a value of its own."""
    for value, variable in enumerate(model.variables, start):
        variable.assign(np.full(variable.shape, value))
    return model


def values(model):
    """Returns the only value that each variable has."""
    found = [np.unique(variable) for variable in model.variables]
    assert all(len(value) == 1 for value in found)
    return [float(value[0]) for value in found]


def save(folder, model, step=5):
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    step_variable = tf.Variable(step, dtype=tf.int64)
    checkpoint = parts.make_checkpoint(
        model, optimizer, step_variable, tf.Variable([0, 0], dtype=tf.int64), None
    )
    console = Console(io.StringIO())
    return Checkpoints(str(folder), checkpoint, None, 5, 0, console).save(step)


def take(source, model):
    """Takes weights; returns the lines that tell of it."""
    terminal = io.StringIO()
    weights.take(str(source), model, Console(terminal))
    return terminal.getvalue().splitlines()


def refused(source, model):
    """Returns with what message weights are refused; none is taken then."""
    before = values(fill(model, 100))
    with pytest.raises(errors.UsageError) as caught:
        take(source, model)
    assert values(model) == before
    message = str(caught.value)
    assert message.startswith(f"--init_checkpoint={source}")
    return message


# Names.


@pytest.mark.parametrize("ending", ["", ".index"])
def test_weights_of_the_same_names_are_taken(ending, tmp_path):
    path = save(tmp_path, fill(dense("a", "b")))
    model = dense("a", "b")
    lines = take(path + ending, model)
    assert values(model) == [1, 2, 3, 4]
    assert lines[0].startswith(f"Weights from {path}: 4 taken, ")
    for name in ("a/kernel", "a/bias", "b/kernel", "b/bias"):
        assert f"  taken: net/{name}" in lines


def test_names_say_which_not_places(tmp_path):
    path = save(tmp_path, fill(dense("a", "b")))
    model = dense("b", "c", "a")
    for variable in model.variables:
        variable.assign(np.full(variable.shape, 9))
    lines = take(path, model)
    assert values(model) == [3, 4, 9, 9, 1, 2]
    assert "  not taken: net/c/kernel is not in the checkpoint" in lines


def test_layers_that_keras_has_numbered_are_numbered_anew(tmp_path):
    path = save(tmp_path, fill(dense("dense_7", "dense_9", name="sequential_3")))
    model = dense("dense", "dense_1", name="sequential")
    lines = take(path, model)
    assert values(model) == [1, 2, 3, 4]
    assert "4 taken" in lines[0]
    assert "  taken: sequential/dense_1/kernel" in lines


def test_the_only_layer_of_a_kind_has_its_name_still(tmp_path):
    def model(*names):
        x = y = keras.Input((2,))
        for name in names:
            y = layers.Dense(2, name=name)(y)
        return keras.Model(x, y)

    path = save(tmp_path, fill(model("dense_3")))
    new = fill(model("dense", "head"), 9)
    take(path, new)
    assert values(new) == [1, 2, 11, 12]


class Listed(keras.Model):
    """Its last layer is the nearest one to the root of a checkpoint."""

    def __init__(self, name):
        super().__init__(name=name)
        self.blocks = [layers.Dense(2), layers.Dense(2)]
        self.head = layers.Dense(2)

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def listed(number):
    model = Listed(f"listed_{number}")  # Keras numbers its layers, too
    model(tf.zeros([1, 2]))
    return model


def frozen(number):
    model = dense(f"dense_{number}", f"dense_{number + 1}")
    model.layers[0].trainable = False
    return model


@pytest.mark.parametrize("make", [listed, frozen])
def test_numbers_follow_the_order_in_which_layers_were_made(make, tmp_path):
    path = save(tmp_path, fill(make(1)))
    model = make(10)
    take(path, model)
    assert values(model) == list(range(1, len(model.variables) + 1))


# Shapes.


def test_what_does_not_fit_is_listed_and_left(tmp_path):
    saved = keras.Sequential(
        [
            keras.Input((2,)),
            layers.Dense(3, name="body"),
            layers.Dense(5, name="head"),
            layers.Dense(1, name="old"),
        ],
        name="net",
    )
    path = save(tmp_path, fill(saved))
    model = keras.Sequential(
        [
            keras.Input((2,)),
            layers.Dense(3, name="body"),
            layers.Dense(7, name="head"),
            layers.Dense(1, name="new"),
        ],
        name="net",
    )
    lines = take(path, fill(model, 100))
    assert values(model) == [1, 2, 102, 103, 104, 105]
    assert "2 taken" in lines[0]
    told = [line.removeprefix("  not taken: ") for line in lines]
    for line in (
        "net/head/kernel is (3, 7) here, and (3, 5) there",
        "net/head/bias is (7,) here, and (5,) there",
        "net/new/kernel is not in the checkpoint",
        "net/new/bias is not in the checkpoint",
        "net/old/kernel (5, 1) is in the checkpoint alone",
        "net/old/bias (1,) is in the checkpoint alone",
    ):
        assert line in told


def test_all_are_in_the_log_however_many(tmp_path):
    names = [f"layer{i}" for i in range(8)]
    path = save(tmp_path, dense(*names))
    terminal, log = io.StringIO(), io.StringIO()
    weights.take(path, dense(*names), Console(terminal, log=log))
    assert "  and 6 more" in terminal.getvalue()
    assert "net/layer7/kernel" not in terminal.getvalue()
    assert "net/layer7/kernel" in log.getvalue()


def test_if_nothing_fits_the_run_does_not_start(tmp_path):
    path = save(tmp_path, dense("a"))
    message = refused(path, dense("a", width=3))
    assert "no weight there has the name and shape" in message
    assert "net/a/kernel is (3, 3) here, and (2, 2) there" in message
    assert "net/b/kernel is not in the checkpoint" in refused(path, dense("b"))


# Files.


@pytest.fixture
def save_tf1(tmp_path):
    """A function that saves variables by name, as TF1's Saver does."""

    def save(**variables):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            for name, value in variables.items():
                value = np.float32(value)
                tf.compat.v1.get_variable(
                    name, initializer=value, use_resource=name != "plain/bias"
                )
            session.run(tf.compat.v1.global_variables_initializer())
            saver = tf.compat.v1.train.Saver()
            return saver.save(session, str(tmp_path / "model.ckpt"), 1000)

    return save


def tf1_dense():
    return {
        "plain/kernel": [[1, 2], [3, 4]],
        "plain/bias": [5, 6],
        "plain/kernel/Adam": [[7, 7], [7, 7]],
        "global_step": 1000,
    }


@pytest.mark.parametrize("is_folder", [False, True], ids=["file", "folder"])
def test_a_tf1_checkpoint_is_read_by_name(is_folder, save_tf1, tmp_path):
    path = save_tf1(**tf1_dense())
    x = keras.Input((2,))
    model = keras.Model(x, layers.Dense(2, name="plain")(x))
    lines = take(tmp_path if is_folder else path, model)
    assert model.layers[-1].kernel.numpy().tolist() == [[1, 2], [3, 4]]
    assert model.layers[-1].bias.numpy().tolist() == [5, 6]
    assert lines[0] == f"Weights from {path}: 2 taken, 2 not."
    assert (
        "  not taken: plain/kernel/Adam (2, 2) is in the checkpoint alone" in lines[1:]
    )


def test_a_tf1_checkpoint_knows_nothing_of_the_model_s_own_name(save_tf1):
    path = save_tf1(**tf1_dense())
    model = dense("plain", name="net")
    take(path, model)
    kernel, bias = (variable.numpy().tolist() for variable in model.variables)
    assert (kernel, bias) == ([[1, 2], [3, 4]], [5, 6])


def test_a_keras_file_is_read(tmp_path):
    path = tmp_path / "model.keras"
    fill(dense("a", "b")).save(path)
    model = dense("a", "b")
    lines = take(path, model)
    assert values(model) == [1, 2, 3, 4]
    assert lines[0] == f"Weights from {path}: 4 taken, 0 not."


def test_a_folder_stands_for_its_newest_checkpoint(tmp_path):
    save(tmp_path, fill(dense("a")), step=9)
    save(tmp_path, fill(dense("a"), 5), step=10)
    model = dense("a")
    lines = take(tmp_path, model)
    assert values(model) == [5, 6]
    assert str(tmp_path / "ckpt-10") in lines[0]


def nothing(folder):
    return folder / "ckpt-1"


def text(folder):
    path = folder / "notes.txt"
    path.write_text("What I have to do.\n" * 100)
    return path


def no_keras(folder):
    path = folder / "model.keras"
    path.write_text("nothing that Keras knows" * 100)
    return path


def other_zip(folder):
    path = folder / "model.keras"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("notes.txt", "What I have to do.")
    return path


def no_index(folder):
    path = save(folder, dense("a"))
    (folder / "ckpt-5.index").write_bytes(b"")
    return path


def no_data(folder):
    path = save(folder, dense("a"))
    (folder / "ckpt-5.data-00000-of-00001").write_bytes(b"")
    return path


def nameless(folder):
    checkpoint = tf.train.Checkpoint(model=dense("a"))
    return checkpoint.write(str(folder / "ckpt-1"))


class Unknown(layers.Layer):
    """One that nobody who loads a file has heard of."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],))

    def call(self, x):
        return x * self.scale


def unknown(folder):
    path = folder / "model.keras"
    keras.Sequential([keras.Input((2,)), Unknown()]).save(path)
    return path


def with_code(folder):
    path = folder / "model.keras"
    trap = layers.Lambda(lambda x: [x, open("/tmp/dtrain-was-here", "w")][0])
    keras.Sequential([keras.Input((2,)), trap, layers.Dense(2)]).save(path)
    pathlib.Path("/tmp/dtrain-was-here").unlink(missing_ok=True)
    return path


FILES = [
    nothing,
    text,
    no_keras,
    other_zip,
    no_index,
    no_data,
    nameless,
    unknown,
    with_code,
]


@pytest.mark.parametrize("make", FILES)
def test_what_cannot_be_read_is_refused(make, tmp_path):
    path = make(tmp_path)
    message = refused(path, dense("a"))
    assert "cannot be read: " in message
    assert "Give a checkpoint" in message
    assert not pathlib.Path("/tmp/dtrain-was-here").exists()


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    assert "no checkpoint in this directory" in refused(tmp_path, dense("a"))


def test_a_weight_that_is_damaged_is_refused(tmp_path):
    path = save(tmp_path, fill(dense("a", "b")))
    (data,) = tmp_path.glob("ckpt-5.data*")
    whole = data.read_bytes()
    last = np.full(2, 4, np.float32).tobytes()
    assert whole.count(last) == 1
    data.write_bytes(whole.replace(last, last[::-1]))
    refused(path, dense("a", "b"))


# In a run.


def make_trainer_of(model, make_trainer):
    trainer = make_trainer()
    trainer.checkpoint.model = model
    return trainer


@pytest.fixture
def source(tmp_path_factory):
    """A checkpoint of step 5, in a folder of its own."""
    return save(tmp_path_factory.mktemp("source"), fill(dense("a")))


def test_a_new_run_starts_from_them_at_step_0(source, prepare, make_trainer):
    model = dense("a")
    trainer = make_trainer_of(model, make_trainer)
    setup = prepare(trainer=trainer, init_checkpoint=source)
    assert values(model) == [1, 2]
    assert setup.session.step == 0
    assert f"Weights from {source}" in setup.lines[0]
    assert setup.run()["global_step"] == 30


def test_a_resumed_run_has_its_own_already(source, prepare, make_trainer, clock):
    saver = CheckpointSaver(0, 0, now=clock)
    first = dense("a")
    trainer = make_trainer_of(first, make_trainer)
    setup = prepare(saver, trainer=trainer, init_checkpoint=source)
    fill(first, 100)
    setup.run()
    second = dense("a")
    trainer = make_trainer_of(second, make_trainer)
    setup = prepare(trainer=trainer, init_checkpoint=source, train_steps=40)
    assert setup.session.step == 30
    assert values(second) == [100, 101]
    assert not any("Weights from" in line for line in setup.lines)
