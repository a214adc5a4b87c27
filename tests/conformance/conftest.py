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

functional_model = make(functional)
subclassed_model = make(Subclassed)
model_with_losses = make(WithLosses)
'''


@pytest.fixture
def run(lab):
    """A function that runs a command to its end in the test's lab."""
    return functools.partial(run_in, lab)


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
