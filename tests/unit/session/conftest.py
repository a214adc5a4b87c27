"""A trainer that only counts, and what a session needs besides."""

import dataclasses
import io

import numpy as np
import pytest
import tensorflow as tf

from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.launch.signals import Signals
from dtrain.session import checkpoints as checkpoints_lib
from dtrain.session.callbacks.base import Callback
from dtrain.session.session import Session
from dtrain.strategies.totals import Totals


class LossOnly:
    """An objective without metrics, as far as `Totals` needs one."""

    @staticmethod
    def results(totals, count):
        return {"loss": totals[0] / count}


class FakeTrainer:
    """Counts steps; with a `lag`, so many calls are under way at a time.

    Args:
        steps_per_loop: what it asks to be called with.
        lag: calls that are not done yet when `train` returns.
        clock: a step takes `step_seconds` of its time.
        repeats: steps that are done once more than they were asked for, as after
            the loss of a worker.
        ends_at: the step at which the data ends; `None` for no end.
        is_known: whether that is known before.
        shares: of their time that steps wait for input, by pipeline.
    """

    is_synchronous = False
    replicas = 2
    batch_size = 8
    examples_per_step = 8
    description = ()
    checkpoint_options = None
    loss_scale = None
    staleness = None
    optimizer = object()
    metric_names = ("accuracy",)
    batch_spec = (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 2]))

    def __init__(
        self,
        steps_per_loop=10,
        lag=0,
        clock=None,
        step_seconds=0.25,
        repeats=0,
        ends_at=None,
        is_known=True,
        shares=(0.0,),
    ):
        self.steps_per_loop = steps_per_loop
        self.global_step = 0
        self.totals = Totals(LossOnly(), len(shares))
        self.is_over = False
        self.passes = None
        self.num_steps = ends_at if is_known else None
        self.worker_steps = [0, 0]
        self.asked = []  # num_steps of each call
        self.waits = []  # global steps at which there was quiet
        self.evaluations = []  # global steps of them
        self.results = {"loss": 0.25, "accuracy": 0.5, "examples": 1234}
        self.slow_seconds = 0  # that an evaluation and a save take
        self.counter = tf.Variable(0, dtype=tf.int64)
        self.checkpoint = tf.train.Checkpoint(counter=self.counter)
        self.checkpoint.optimizer = tf.Module()
        self.bad_weight = None
        self.profiling = []  # global steps at which it began and ended
        self._lag = lag
        self._clock = clock
        self._step_seconds = step_seconds
        self._repeats = repeats
        self._ends_at = ends_at
        self._shares = shares
        self._under_way = []

    def choose_loop(self, remaining):
        return min(self.steps_per_loop, remaining)

    def train(self, num_steps):
        assert num_steps > 0
        self.asked.append(num_steps)
        self._under_way.append(num_steps)
        while len(self._under_way) > self._lag:
            self._finish()

    def wait(self):
        while self._under_way:
            self._finish()
        self.global_step += self._repeats
        self.counter.assign_add(self._repeats)
        self._repeats = 0
        self.waits.append(self.global_step)

    def evaluate(self, is_over):
        assert not self._under_way
        self._pass(self.slow_seconds)
        self.evaluations.append(self.global_step)
        return self.results

    def learning_rate(self, step=None):
        return 0.125 + (step or 0)

    def find_bad_weight(self):
        return self.bad_weight

    def start_profiling(self):
        assert not self._under_way
        self.profiling.append(self.global_step)

    def stop_profiling(self):
        self.profiling.append(self.global_step)
        return {"chief:0": b"a profile", "worker:1": b"another"}

    def before_save(self):
        assert not self._under_way
        self._pass(self.slow_seconds)

    def after_restore(self):
        self.global_step = int(self.counter.numpy())

    def _finish(self):
        num_steps = asked = self._under_way.pop(0)
        if self._ends_at is not None:
            num_steps = min(asked, self._ends_at - self.global_step)
            self.is_over |= num_steps < asked
        loss_sum, last_loss = 0, self.totals.last_loss
        for _ in range(num_steps):
            self.worker_steps[self.global_step % 2] += 1
            self.global_step += 1
            loss_sum += self.global_step  # step n has a loss of n
        seconds = num_steps * self._step_seconds
        waits = [(i, share * seconds, seconds) for i, share in enumerate(self._shares)]
        self.totals.add(np.array([loss_sum], float), num_steps, waits)
        self.totals.last_loss = last_loss  # what a test has set
        self.counter.assign_add(num_steps)
        self._pass(num_steps * self._step_seconds)

    def _pass(self, seconds):
        if self._clock is not None:
            self._clock.advance(seconds)


class Recorder(Callback):
    """Notes what it is told, and that nobody loops for ever."""

    def __init__(self):
        self.events = []
        self.loops = 0

    def on_start(self, session):
        self.events.append(("start", session.step))

    def on_loop(self, session):
        self.loops += 1
        assert self.loops < 1000, "the loop makes no progress"

    def on_save(self, session, path):
        self.events.append(("save", session.step))

    def on_evaluation(self, session, results):
        self.events.append(("evaluation", session.step))

    def on_end(self, session):
        self.events.append(("end", session.step))

    def on_error(self, session, error):
        self.events.append(("error", error))


@dataclasses.dataclass
class Setup:
    """Everything of one command."""

    session: Session
    trainer: FakeTrainer
    recorder: Recorder
    signals: Signals
    terminal: io.StringIO

    def run(self):
        return self.session.run()

    @property
    def lines(self):
        return self.terminal.getvalue().splitlines()


@pytest.fixture
def make_trainer(clock):
    """A function that makes a FakeTrainer on the test's clock."""

    def make(**options):
        return FakeTrainer(clock=clock, **options)

    return make


@pytest.fixture
def prepare(tmp_path, clock, make_trainer):
    """A function that sets up a session in the test's folder, as one command would."""

    def prepare(*callbacks, trainer=None, terminal=None, log=None, **options):
        trainer = trainer or make_trainer()
        config = RunConfig(
            **{"train_steps": 30, "batch_size": 8, "strategy": "local", **options},
            model_dir=str(tmp_path),
        )
        terminal = terminal or io.StringIO()
        recorder, signals = Recorder(), Signals()
        session = Session(
            trainer,
            config,
            [*callbacks, recorder],
            Console(terminal, log=log),
            signals,
            now=clock,
        )
        return Setup(session, trainer, recorder, signals, terminal)

    return prepare


@pytest.fixture
def checkpoints(tmp_path):
    """A function that lists the steps of the checkpoints in the test's folder."""

    def steps():
        names = (path.stem for path in tmp_path.glob("ckpt-*.index"))
        return sorted(int(name.removeprefix("ckpt-")) for name in names)

    return steps


class Store:
    """A folder of checkpoints of one number, which is the step.

    Args:
        folder: the test's own.
        clock: the time, in seconds since 1970.
    """

    def __init__(self, folder, clock):
        self.folder = folder
        self.clock = clock
        self.number = tf.Variable(-1.0)
        self.start()

    def start(self, keep=3, hours=0.0):
        """Does what a command does first."""
        self.terminal = io.StringIO()
        self.checkpoints = checkpoints_lib.Checkpoints(
            str(self.folder),
            tf.train.Checkpoint(number=self.number),
            None,
            keep,
            hours,
            Console(self.terminal),
            now=self.clock,
        )

    def save(self, *steps):
        for step in steps:
            self.number.assign(step)
            self.checkpoints.save(step)

    def restore(self):
        """Starts anew; returns the step that is restored, `None` if there is none."""
        self.number.assign(-1)
        self.start()
        path = self.checkpoints.restore()
        if path is None:
            return None
        assert path == self.path(self.number.numpy())
        return int(self.number.numpy())

    @staticmethod
    def read(path):
        """Returns the number that a checkpoint holds."""
        return tf.train.load_variable(path, "number/.ATTRIBUTES/VARIABLE_VALUE")

    def path(self, step):
        return str(self.folder / f"ckpt-{int(step)}")

    @property
    def steps(self):
        return [checkpoints_lib.step_of(p) for p in checkpoints_lib.find(self.folder)]

    @property
    def lines(self):
        return self.terminal.getvalue().splitlines()


@pytest.fixture
def store(tmp_path, clock):
    """A `Store` in the test's folder, on the test's clock."""
    clock.advance(1e9)
    return Store(tmp_path, clock)
