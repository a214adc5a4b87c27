"""What is compared with what, and the bars: data, and nothing else.

A contender is a command. It runs in the repository's root, and the last line that it
prints is a JSON object: its "value", and perhaps "values" by name, which get a row
each.
`{python}` stands for the interpreter that runs `benchmarks.run`, `{torch_python}` for
one that has PyTorch.
"""

import dataclasses
from collections.abc import Mapping

Command = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Bar:
    """What a number has to reach.

    Attributes:
        bound: the number.
        is_most: whether it is the most allowed, not the least.
    """

    bound: float
    is_most: bool = False

    def is_reached(self, number: float) -> bool:
        return number <= self.bound if self.is_most else number >= self.bound

    def __str__(self) -> str:
        return f"{'at most' if self.is_most else 'at least'} {self.bound:g}"


def at_least(bound: float) -> Bar:
    return Bar(bound)


def at_most(bound: float) -> Bar:
    return Bar(bound, is_most=True)


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Two contenders, and how far apart they have to be.

    Attributes:
        numerator: a contender.
        denominators: contenders, of which the one with the highest median counts.
        bar: what numerator / denominator / `divided_by` has to reach.
        divided_by: what would be a ratio of 1: N, where N workers replace one.
    """

    numerator: str
    denominators: tuple[str, ...]
    bar: Bar
    divided_by: float = 1


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Contenders for one thing, which run in turn.

    Attributes:
        name: for --only.
        title: for the table.
        unit: of the values.
        contenders: name to command.
        ratios: what has to hold between them.
        each: what each of the "values" by name has to reach; `None` if there are none.
        rounds: the most that make sense, where one takes long; `None` for any.
    """

    name: str
    title: str
    unit: str
    contenders: Mapping[str, Command]
    ratios: tuple[Ratio, ...] = ()
    each: Bar | None = None
    rounds: int | None = None


def _python(module: str, *flags: str) -> Command:
    return ("{python}", "-m", f"benchmarks.{module}", *flags)


def _ours(experiment: str, *flags: str) -> Command:
    return _python("ours", f"--experiment={experiment}", *flags)


def _dtrain(*flags: str) -> Command:
    # The rate that the peers have.
    return _ours("mnist_mlp", "--learning_rate=0.1", *flags)


def _ddp(*flags: str) -> Command:
    return ("{torch_python}", "-m", "benchmarks.peers.ddp", *flags)


def _scaling(strategy: str, counts: tuple[int, ...], bar: float) -> Comparison:
    def name(count: int) -> str:
        return f"{count} worker{'s' * (count > 1)}"

    return Comparison(
        name=f"scaling_{strategy}",
        title=f"--strategy={strategy}, steps that wait instead of computing",
        unit="steps/s",
        contenders={
            name(count): _python(
                "waiting", f"--strategy={strategy}", f"--num_workers={count}"
            )
            for count in counts
        },
        ratios=tuple(
            # Each worker of `ps` adds its steps; of `sync`, all do each step together.
            Ratio(
                name(count),
                (name(1),),
                at_least(bar),
                divided_by=count if strategy == "ps" else 1,
            )
            for count in counts[1:]
        ),
    )


_QUIET = ("--checkpoint_every=0", "--summary_every=0", "--log_every=0")

COMPARISONS = (
    Comparison(
        name="ps_sgd",
        title="Parameter servers, 2 workers, 1 ps, SGD",
        unit="steps/s",
        contenders={
            "dtrain": _dtrain("--strategy=ps", "--train_steps=6000"),
            "tf1": _python("peers.tf1", "--steps=3000"),
            "coordinator": _python("peers.coordinator", "--steps=1700"),
        },
        ratios=(
            Ratio("dtrain", ("tf1",), at_least(2.0)),
            Ratio("dtrain", ("coordinator",), at_least(3.0)),
        ),
    ),
    Comparison(
        name="ps_adam",
        title="Parameter servers, 2 workers, 1 ps, Adam",
        unit="steps/s",
        contenders={
            "dtrain": _ours(
                "mnist_mlp",
                *("--strategy=ps", "--train_steps=4500"),
                *("--optimizer=adam", "--learning_rate=0.001"),
            ),
            "tf1": _python("peers.tf1", "--optimizer=adam", "--steps=2500"),
        },
        ratios=(Ratio("dtrain", ("tf1",), at_least(1.5)),),
    ),
    Comparison(
        name="ps_wide",
        title="Parameter servers, 2 workers, 2 ps, 7.9 million parameters, SGD",
        unit="steps/s",
        contenders={
            "dtrain": _ours(
                "benchmarks.experiments:wide_mlp",
                *("--strategy=ps", "--num_ps=2"),
                *("--learning_rate=0.1", "--train_steps=180"),
            ),
            "tf1": _python("peers.tf1", "--model=wide_mlp", "--ps=2", "--steps=150"),
        },
        ratios=(Ratio("dtrain", ("tf1",), at_least(1.2)),),
    ),
    Comparison(
        name="sync",
        title="Synchronous, 2 workers, SGD",
        unit="updates/s",
        contenders={
            "dtrain": _dtrain("--strategy=sync", "--train_steps=2500"),
            "tf1": _python("peers.tf1", "--sync", "--steps=1500"),
            "ddp": _ddp("--steps=2500"),
        },
        ratios=(
            Ratio("dtrain", ("tf1",), at_least(1.5)),
            Ratio("dtrain", ("ddp",), at_least(1.0)),
        ),
    ),
    Comparison(
        name="local",
        title="One process, SGD",
        unit="steps/s",
        contenders={
            "dtrain": _dtrain("--strategy=local", "--train_steps=14000"),
            "tf_function": _python("peers.tf_function", "--steps=14000"),
            **{
                f"keras_fit {count}": _python(
                    "peers.keras_fit", f"--steps_per_execution={count}", "--steps=8000"
                )
                for count in (1, 10, 50, 100)
            },
        },
        ratios=(
            Ratio("dtrain", ("tf_function",), at_least(0.97)),
            Ratio(
                "dtrain",
                tuple(f"keras_fit {count}" for count in (1, 10, 50, 100)),
                at_least(1.0),
            ),
        ),
    ),
    Comparison(
        name="callbacks",
        title="All that the session does by default, and nothing of it; ps, 2 workers",
        unit="steps/s",
        contenders={
            "defaults": _ours("mnist_mlp", "--train_steps=8000"),
            "none": _ours(
                "benchmarks.experiments:bare", "--train_steps=8000", "--summary_every=0"
            ),
        },
        ratios=(Ratio("defaults", ("none",), at_least(0.97)),),
    ),
    Comparison(
        name="input",
        title="Where batches are made; ps, 2 workers",
        unit="steps/s",
        contenders={
            name: _ours(f"benchmarks.experiments:{name}", "--train_steps=5000", *_QUIET)
            for name in ("traced", "pipeline", "arrays")
        },
        ratios=(
            Ratio("pipeline", ("traced",), at_least(0.95)),
            Ratio("arrays", ("traced",), at_least(0.95)),
        ),
    ),
    Comparison(
        name="generator",
        title="A generator that needs 20 ms a batch, in Python; ps",
        unit="steps/s",
        contenders={
            "1 worker": _ours(
                "benchmarks.experiments:generator",
                *("--train_steps=400", "--num_workers=1", *_QUIET),
            ),
            "3 workers": _ours(
                "benchmarks.experiments:generator",
                *("--train_steps=1200", "--num_workers=3", *_QUIET),
            ),
        },
        ratios=(Ratio("3 workers", ("1 worker",), at_least(0.95), divided_by=3),),
    ),
    _scaling("ps", (1, 2, 4, 8), 0.95),
    _scaling("sync", (1, 2, 4), 0.9),
    Comparison(
        name="startup",
        title="From the command to the first step, and the imports alone",
        unit="seconds",
        contenders={
            "dtrain": _python("startup", "dtrain"),
            "imports": _python("startup", "imports"),
        },
        ratios=(Ratio("dtrain", ("imports",), at_most(2.0)),),
    ),
    Comparison(
        name="memory",
        title="Memory of each task at the end of 20,000 steps, and early in them",
        unit="ratio",
        contenders={"dtrain": _python("memory")},
        each=at_most(1.02),
        rounds=1,
    ),
    Comparison(
        name="agreement",
        title="Weights after 200 updates of sync, beside those by Keras' own updates",
        unit="of the largest",
        contenders={"dtrain": _python("agreement")},
        each=at_most(0.0001),
        rounds=1,
    ),
)
