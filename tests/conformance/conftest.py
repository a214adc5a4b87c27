"""The strategies that all promises are put to: a new one is one row here."""

import dataclasses
import functools
import json

import pytest


@dataclasses.dataclass(frozen=True)
class Strategy:
    """One row of the table.

    Attributes:
        name: what `--strategy` is given.
        flags: further ones.
        cluster: the result file's.
        replicas: likewise.
        global_batch: how many batches one update sees.
    """

    name: str
    flags: tuple[str, ...]
    cluster: dict[str, int]
    replicas: int
    global_batch: int

    def __str__(self) -> str:
        return self.name

    @property
    def chief(self) -> str | None:
        """The task that reports; `None` if the command itself does."""
        return f"{next(iter(self.cluster))}:0" if self.cluster else None


STRATEGIES = [
    Strategy("local", (), {}, 1, 1),
    Strategy("mirrored", ("--devices_per_task=3",), {}, 3, 3),
    Strategy("ps", (), {"chief": 1, "worker": 2, "ps": 1}, 2, 1),
    Strategy("sync", (), {"worker": 2}, 2, 2),
]


@pytest.fixture(params=STRATEGIES, ids=str, scope="module")
def strategy(request):
    """Each strategy in turn."""
    return request.param


@pytest.fixture(scope="session")
def strategies():
    """All of them, by name."""
    return {strategy.name: strategy for strategy in STRATEGIES}


# Models as people write them, and a callback that tells what the weights are.
MODELS = '''
import hashlib
import dtrain, keras
import numpy as np
from dtrain.data import digits

class Teller(dtrain.Callback):
    """Prints a digest of the model's weights, whatever the strategy."""

    def tell(self, session, when):
        digest = hashlib.sha256()
        for variable in session.trainer.checkpoint.model.trainable_variables:
            digest.update(variable.numpy().tobytes())
        print("WEIGHTS", when, session.step, digest.hexdigest()[:16])

    def on_start(self, session):
        self.tell(session, "start")

    def on_end(self, session):
        self.tell(session, "end")

def functional():
    inputs = keras.Input((64,))
    hidden = keras.layers.Dense(64, activation="relu")(inputs)
    skipped = keras.layers.Concatenate()([inputs, hidden])
    return keras.Model(inputs, keras.layers.Dense(10)(skipped))

class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(64, activation="relu")
        self.norm = keras.layers.BatchNormalization()
        self.dropout = keras.layers.Dropout(0.1)
        self.top = keras.layers.Dense(10)

    def call(self, x, training=False):
        return self.top(self.dropout(self.norm(self.hidden(x)), training=training))

class WithLosses(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(
            64, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-4))
        self.top = keras.layers.Dense(10, activity_regularizer="l2")

    def call(self, x):
        hidden = self.hidden(x)
        self.add_loss(1e-3 * keras.ops.mean(keras.ops.square(hidden)))
        return self.top(hidden)

def make(model):
    @dtrain.defaults(train_steps=150, batch_size=32)
    def experiment(config):
        return dtrain.Experiment(
            model=model,
            optimizer=lambda: keras.optimizers.Adam(0.01, global_clipnorm=5.0),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
            train_data=lambda ctx: digits.train_batches(
                ctx, batch_size=config.batch_size, seed=config.seed),
            eval_data=lambda: digits.eval_batches(
                dtrain.InputContext(), batch_size=50),
            callbacks=lambda: [Teller()],
        )
    return experiment

# Data as people have it: not as a tf.data pipeline.

def split():
    rows = np.loadtxt(digits.PATH, delimiter=",")
    x, y = (rows[:, :-1] / 16).astype("float32"), rows[:, -1].astype("int64")
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order]
    return (x[:-360], y[:-360]), (x[-360:], y[-360:])

def experiment_on(train_data, eval_data, **fields):
    @dtrain.defaults(train_steps=150, batch_size=32)
    def experiment(config):
        defaults = dict(
            model=functional,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        )
        return dtrain.Experiment(
            **(defaults | fields),
            optimizer=lambda: keras.optimizers.Adam(0.01),
            train_data=lambda: train_data(config),
            eval_data=lambda: eval_data(config),
            callbacks=lambda: [Teller()],
        )
    return experiment

arrays = experiment_on(lambda config: split()[0], lambda config: split()[1])

def batches(arrays, size):
    for start in range(0, len(arrays[0]), size):
        yield tuple(array[start : start + size] for array in arrays)

generator = experiment_on(
    lambda config: batches(split()[0], config.batch_size),
    lambda config: batches(split()[1], 50),
)

def two_outputs_model():
    top, bottom = keras.Input((32,), name="top"), keras.Input((32,), name="bottom")
    both = keras.layers.Concatenate()([top, bottom])
    hidden = keras.layers.Dense(64, activation="relu")(both)
    outputs = {
        "digit": keras.layers.Dense(10, name="digit")(hidden),
        "ink": keras.layers.Dense(1, name="ink")(hidden),
    }
    return keras.Model({"top": top, "bottom": bottom}, outputs)

def with_weights(arrays):
    x, y = arrays
    features = {"top": x[:, :32], "bottom": x[:, 32:]}
    labels = {"digit": y, "ink": x.mean(1, keepdims=True)}
    weights = {"digit": np.where(y == 0, 2.0, 1.0), "ink": np.ones(len(y))}
    return features, labels, weights

two_outputs = experiment_on(
    lambda config: with_weights(split()[0]),
    lambda config: with_weights(split()[1]),
    model=two_outputs_model,
    loss={
        "digit": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "ink": keras.losses.MeanSquaredError(),
    },
    loss_weights={"digit": 1.0, "ink": 0.5},
    metrics=lambda: {
        "digit": [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        "ink": [keras.metrics.MeanAbsoluteError(name="error")],
    },
)

TOKENS = [f"p{i}" for i in range(64)]

def strings_model():
    text = keras.Input((), dtype="string", name="text")
    group = keras.Input((1,), dtype="string", name="group")
    ink = keras.Input((1,), name="ink")
    words = keras.layers.TextVectorization(
        vocabulary=TOKENS, output_mode="multi_hot", standardize=None)(text)
    groups = keras.layers.StringLookup(
        vocabulary=["light", "dark"], output_mode="one_hot")(group)
    hashed = keras.layers.Hashing(4, output_mode="one_hot")(group)
    scaled = keras.layers.Normalization(mean=0.3, variance=0.01)(ink)
    both = keras.layers.Concatenate()([words, groups, hashed, scaled])
    hidden = keras.layers.Dense(64, activation="relu")(both)
    return keras.Model([text, group, ink], keras.layers.Dense(10)(hidden))

def as_strings(arrays):
    x, y = arrays
    text = [" ".join(t for t, v in zip(TOKENS, row) if v > 0.5) for row in x]
    ink = x.mean(1, keepdims=True)
    group = np.where(ink > 0.3, "dark", "light")
    return (np.array(text, object), group, ink), y

strings = experiment_on(
    lambda config: as_strings(split()[0]),
    lambda config: as_strings(split()[1]),
    model=strings_model,
)

# What people hang on a session.

class Witness(dtrain.Callback):
    """Prints what it is told."""

    def on_start(self, session):
        print("WITNESS start", session.step)

    def before_save(self, session):
        print("WITNESS before_save", session.step)

    def on_save(self, session, path):
        print("WITNESS save", session.step)

    def on_evaluation(self, session, results):
        print("WITNESS evaluation", session.step, results["examples"])

    def on_end(self, session):
        print("WITNESS end", session.step)

    def on_error(self, session, error):
        print("WITNESS error", type(error).__name__)

class Raiser(dtrain.Callback):
    def on_loop(self, session):
        if session.step >= 40:
            raise KeyError("no such thing")

class BadAt57(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that breaks the weights in one update: number 57, from 0."""

    def __call__(self, step):
        step = keras.ops.cast(step, "float32")
        return keras.ops.where(step == 57.0, np.nan, 0.01)

def experiment_with(*callbacks, rate=0.01):
    @dtrain.defaults(train_steps=350, batch_size=32)
    def experiment(config):
        return dtrain.Experiment(
            model=functional,
            optimizer=lambda: keras.optimizers.Adam(rate),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
            train_data=lambda: split()[0],
            eval_data=lambda: split()[1],
            callbacks=lambda: [make() for make in callbacks],
        )
    return experiment

watched = experiment_with(
    Witness,
    lambda: dtrain.callbacks.ValueLogger(
        {"largest": lambda session: abs(session.model.weights[0].numpy()).max()}, 150),
    lambda: dtrain.callbacks.FinalValues(lambda session: {"at": session.step}),
    lambda: dtrain.callbacks.StopAtStep(last_step=300),
)
raising = experiment_with(Raiser, Witness)
breaking = experiment_with(Witness, rate=BadAt57())

functional_model = make(functional)
subclassed_model = make(Subclassed)
model_with_losses = make(WithLosses)
'''


@pytest.fixture
def run(lab):
    """A function that runs a command to its end in the test's lab."""
    return functools.partial(run_in, lab)


@pytest.fixture(scope="session", name="run_in")
def give_run_in():
    """`run_in`, for labs that tests and fixtures choose themselves."""
    return run_in


@pytest.fixture(scope="session")
def split():
    """A function that writes the evaluation data of `MODELS` to a file."""

    def write(path):
        code = MODELS.split("def experiment_on")[0] + "\n(x, y) = split()[1]\n"
        exec(code + f"np.savez({str(path)!r}, x=x, y=y)", {})

    return write


def run_in(lab, strategy, *flags, name="run", expect=0, own_flags=None):
    """Runs a command to its end; returns it, and the result file's content.

    Args:
        own_flags: in place of the strategy's.
        expect: the exit status that it has to end with.
    """
    (lab.folder / "my_models.py").write_text(MODELS)
    result = lab.folder / f"{name}.json"
    command = lab.dtrain(
        f"--strategy={strategy.name}",
        *(strategy.flags if own_flags is None else own_flags),
        f"--result_file={result}",
        *flags,
        name=name,
    )
    assert command.wait() == expect
    return command, json.loads(result.read_text()) if result.exists() else None


@dataclasses.dataclass
class Run:
    """A run that has ended, and what it left."""

    lab: object
    command: object
    result: dict
    pids: dict[str, int]


@pytest.fixture(scope="module")
def digits_run(strategy, make_lab):
    """One run of digits_mlp under the strategy, that many promises are read from."""
    with make_lab() as lab:
        command, result = run_in(lab, strategy, *DIGITS)
        path = lab.model_dir / "tasks.json"
        pids = (
            {t: entry["pid"] for t, entry in lab.tasks().items()}
            if (path.exists())
            else {}
        )
        lab.check_nothing_left()
        yield Run(lab, command, result, pids)


# 700 is no multiple of any size of a loop; checkpoints at 300, 600 and 700.
DIGITS = (
    "--train_steps=700",
    "--checkpoint_every=300",
    "--keep_checkpoints=2",
    "--eval_every=500",
    "--summary_every=50",
)


@pytest.fixture
def run_again(digits_run, strategy):
    """A function that starts the strategy's command on the same model directory."""
    return functools.partial(run_in, digits_run.lab, strategy)
