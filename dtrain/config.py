"""How to train: the options of one run, checked as soon as they are made.

`RunConfig` has one field a flag, of the same name (see `flags.py`, which holds
what each one means). What to train is an `Experiment`; where, a `Cluster`.
"""

import dataclasses
import math
import numbers
import os
from collections.abc import Mapping
from typing import Any

from dtrain import errors

STRATEGIES = ("local", "mirrored", "ps", "sync")
GRADIENT_DTYPES = ("float32", "bfloat16")
DATA_SHARDINGS = ("static", "dynamic", "off")
CLUSTER_SOURCES = ("auto", "local", "flags", "env", "tf_config")
PRIVATE_NETWORKS = ("auto", "on", "off")
MODES = ("train", "eval", "export")
SCHEDULES = ("constant", "cosine", "exponential", "piecewise")
PRECISIONS = ("bfloat16", "float16")

# What an experiment may make its model, optimizer or data of.
FOR_EXPERIMENTS = (
    "strategy",
    "experiment",
    "data_dir",
    "data_sharding",
    "train_steps",
    "epochs",
    "batch_size",
    "optimizer",
    "learning_rate",
    "accumulate_steps",
    "mixed_precision",
    "seed",
)

# What an experiment that declares nothing gets (`dtrain.defaults`).
DEFAULT_TRAIN_STEPS = 1000
DEFAULT_BATCH_SIZE = 32

_AT_LEAST = {
    "train_steps": 1,
    "epochs": 1,
    "batch_size": 1,
    "seed": 0,
    "steps_per_loop": 1,
    "eval_every": 0,
    "checkpoint_every": 0,
    "checkpoint_secs": 0,
    "keep_checkpoints": 1,
    "keep_checkpoint_every_hours": 0,
    "early_stop_patience": 0,
    "warmup_steps": 0,
    "decay_steps": 1,
    "summary_every": 0,
    "log_every": 0,
    "num_workers": 1,
    "num_ps": 1,
    "devices_per_task": 1,
    "accumulate_steps": 1,
    "startup_timeout": 1,
    "heartbeat_timeout": 3,
    "chief_timeout": 1,
    "max_restarts": 0,
}
_REAL = (
    "checkpoint_secs",
    "startup_timeout",
    "heartbeat_timeout",
    "chief_timeout",
    "keep_checkpoint_every_hours",
)
_ABOVE_ZERO = ("learning_rate", "decay_rate", "clip_norm")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The options of one run. Each field is the flag of the same name.

    `None` in `train_steps`, `batch_size`, and in what concerns the optimizer means
    "the experiment's own"; an experiment function sees the first two filled in.

    Raises:
        UsageError: a value is out of range, or two contradict each other.
    """

    mode: str = "train"
    strategy: str = "ps"
    experiment: str = "digits_mlp"
    model_dir: str | None = None
    data_dir: str | None = None
    data_sharding: str = "static"
    train_steps: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    optimizer: str | None = None
    learning_rate: float | None = None
    learning_rate_schedule: str | None = None
    warmup_steps: int = 0
    decay_steps: int | None = None
    decay_rate: float = 0.1
    decay_boundaries: str | None = None
    clip_norm: float | None = None
    weight_decay: float | None = None
    mixed_precision: str | None = None
    accumulate_steps: int = 1
    gradient_dtype: str = "float32"
    devices_per_task: int | None = None
    seed: int = 0
    steps_per_loop: int | None = None
    init_checkpoint: str | None = None
    eval_every: int = 0
    evaluator: bool = False
    best_metric: str | None = None
    early_stop_patience: int = 0
    checkpoint_every: int = 1000
    checkpoint_secs: float = 600.0
    keep_checkpoints: int = 5
    keep_checkpoint_every_hours: float = 0.0
    export_dir: str | None = None
    summary_every: int = 100
    log_every: int = 100
    log_workers: bool = False
    profile_steps: str | None = None
    result_file: str | None = None
    num_workers: int = 2
    num_ps: int = 1
    cluster: str = "auto"
    ps_hosts: str | None = None
    worker_hosts: str | None = None
    chief_host: str | None = None
    job_name: str | None = None
    task_index: int | None = None
    startup_timeout: float = 300.0
    heartbeat_timeout: float = 30.0
    chief_timeout: float = 300.0
    supervise: bool = False
    max_restarts: int = 10
    private_network: str = "auto"

    def __post_init__(self):
        self._check_types()
        _check_choice("strategy", self.strategy, STRATEGIES)
        _check_choice("cluster", self.cluster, CLUSTER_SOURCES)
        _check_choice("gradient_dtype", self.gradient_dtype, GRADIENT_DTYPES)
        _check_choice("data_sharding", self.data_sharding, DATA_SHARDINGS)
        _check_choice("mode", self.mode, MODES)
        _check_choice("private_network", self.private_network, PRIVATE_NETWORKS)
        for name, choices in (
            ("learning_rate_schedule", SCHEDULES),
            ("mixed_precision", PRECISIONS),
        ):
            if getattr(self, name) is not None:
                _check_choice(name, getattr(self, name), choices)
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if value is None:
                continue
            if name not in _REAL and not isinstance(value, numbers.Integral):
                raise errors.UsageError(
                    f"--{name}={value!r} is not a whole number. Give one of {least} "
                    "or more."
                )
            _check_number(name, value)
            if not value >= least:  # NaN, too
                raise errors.UsageError(
                    f"--{name}={value} is too small. Give {least} or more."
                )
        if self.strategy not in ("mirrored", "sync"):
            self._check_one_device()
        if self.data_sharding == "dynamic" and self.strategy in ("sync", "mirrored"):
            raise errors.UsageError(
                "--data_sharding=dynamic lets fast workers take what slow ones do not, "
                f"but with --strategy={self.strategy} all wait for the slowest. Leave "
                "it out."
            )
        if self.seed >= 2**32:
            raise errors.UsageError(
                f"--seed={self.seed} is too large. Give less than {2**32}."
            )
        for name in _ABOVE_ZERO:
            value = getattr(self, name)
            if value is None:
                continue
            _check_number(name, value)
            if not 0 < value < math.inf:
                raise errors.UsageError(
                    f"--{name}={value} would not train anything. Give a number above 0."
                )
        if self.weight_decay is not None:
            _check_number("weight_decay", self.weight_decay)
            if not 0 <= self.weight_decay < math.inf:
                raise errors.UsageError(
                    f"--weight_decay={self.weight_decay} would let weights grow. Give "
                    "a number of 0 or more."
                )
        self._check_schedule()
        self._check_evaluation()
        self.profiled_steps()

    def _check_one_device(self) -> None:
        if self.gradient_dtype != "float32" and self.strategy == "local":
            raise errors.UsageError(
                f"--gradient_dtype={self.gradient_dtype} is for gradients that travel, "
                "which they do not under --strategy=local. Leave it out, or use "
                "--strategy=ps or sync."
            )
        if (self.devices_per_task or 1) > 1:
            raise errors.UsageError(
                f"--devices_per_task={self.devices_per_task}, but a task of "
                f"--strategy={self.strategy} uses one device. Leave it out, or use "
                "--strategy=mirrored (one machine) or sync (several)."
            )

    def _check_types(self) -> None:
        """Refuses what is no text or no bool; takes a path for its text."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type is bool and not isinstance(value, bool):
                raise errors.UsageError(
                    f"--{field.name}={value!r} is neither true nor false. Give one."
                )
            if field.type not in (str, str | None):
                continue
            if value is None and field.type is not str:
                continue
            if isinstance(value, os.PathLike):
                value = os.fspath(value)
                object.__setattr__(self, field.name, value)
            if not isinstance(value, str) or not value:
                raise errors.UsageError(
                    f"--{field.name}={value!r} is no text. Give one, as on the command "
                    "line, or leave it out."
                )

    def _check_schedule(self) -> None:
        schedule = self.learning_rate_schedule
        needs = {
            "decay_steps": ("cosine", "exponential"),
            "decay_rate": ("exponential", "piecewise"),
            "decay_boundaries": ("piecewise",),
        }
        for name, schedules in needs.items():
            is_given = getattr(self, name) != getattr(RunConfig, name)
            if is_given and schedule not in schedules:
                raise errors.UsageError(
                    f"--{name}={getattr(self, name)} needs --learning_rate_schedule="
                    f"{' or '.join(schedules)}. Add it, or leave --{name} out."
                )
        if schedule == "piecewise" and not self.boundaries():
            raise errors.UsageError(
                "--learning_rate_schedule=piecewise needs --decay_boundaries="
                "1000,2000: the global steps after which the rate is multiplied by "
                "--decay_rate."
            )
        self.boundaries()

    def boundaries(self) -> list[int]:
        """Returns the global steps of `decay_boundaries`, ascending."""
        steps = _read_steps("decay_boundaries", self.decay_boundaries)
        if steps != sorted(set(steps)):
            raise errors.UsageError(
                f"--decay_boundaries={self.decay_boundaries} does not ascend. Give "
                "each step once, the first one first."
            )
        return steps

    def profiled_steps(self) -> tuple[int, int] | None:
        """Returns the global steps at which profiling begins and ends."""
        steps = _read_steps("profile_steps", self.profile_steps)
        if not steps:
            return None
        if len(steps) != 2 or steps[0] >= steps[1]:
            raise errors.UsageError(
                f"--profile_steps={self.profile_steps} is no span of steps. Give the "
                "first and the last: --profile_steps=100,120."
            )
        return steps[0], steps[1]

    def _check_evaluation(self) -> None:
        if self.best_metric is not None:
            _, _, name = self.best_metric.rpartition(":")
            goal = self.best_metric.removesuffix(name)
            if name in ("", "min", "max") or goal not in ("", "min:", "max:"):
                raise errors.UsageError(
                    f"--best_metric={self.best_metric} is no metric. Give loss or a "
                    "metric's name, with min: or max: before it where it is not clear "
                    "what is better: --best_metric=min:perplexity."
                )
        if self.early_stop_patience and not (self.eval_every or self.evaluator):
            if self.mode == "train" and self.job_name != "evaluator":
                raise errors.UsageError(
                    f"--early_stop_patience={self.early_stop_patience} counts "
                    "evaluations, and there is only one, at the end. Add --eval_every="
                    "STEPS, or an evaluator (--evaluator)."
                )

    def replace(self, **changes: Any) -> "RunConfig":
        """Returns a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def with_defaults(self, defaults: Mapping[str, Any]) -> "RunConfig":
        """Returns a copy whose unset fields are filled from an experiment's own.

        Args:
            defaults: field name to value; only fields that are `None` take it.
        """
        missing = {
            name: value
            for name, value in defaults.items()
            if getattr(self, name) is None
        }
        return self.replace(**missing) if missing else self

    def to_flags(self) -> list[str]:
        """Returns the command-line flags that make this config."""
        return [
            f"--{field.name}={getattr(self, field.name)}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        ]


def _read_steps(name: str, text: str | None) -> list[int]:
    """Returns the steps that a flag lists with commas between them."""
    if text is None:
        return []
    steps = [item.strip() for item in text.split(",")]
    if not all(step.isdecimal() for step in steps):
        raise errors.UsageError(
            f"--{name}={text} is no list of steps. Write whole numbers with a comma "
            f"between two: --{name}=100,200."
        )
    return [int(step) for step in steps]


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise errors.UsageError(
            f"--{name}={value} is unknown. Choose one of: {', '.join(choices)}."
            + errors.did_you_mean(value, choices)
        )


def _check_number(name: str, value: Any) -> None:
    if not isinstance(value, numbers.Real):
        raise errors.UsageError(f"--{name}={value!r} is not a number. Give one.")
