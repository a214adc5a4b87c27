"""How to train: the options of one run, checked as soon as they are made.

`RunConfig` has one field a flag, of the same name (see `flags.py`, which holds
what each one means). What to train is an `Experiment`; where, a `Cluster`.
"""

import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any

from dtrain import errors

STRATEGIES = ("local", "mirrored", "ps", "sync")
GRADIENT_DTYPES = ("float32", "bfloat16")
DATA_SHARDINGS = ("static", "dynamic", "off")
CLUSTER_SOURCES = ("auto", "local", "flags", "env", "tf_config")

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
    "summary_every": 0,
    "log_every": 0,
    "num_workers": 1,
    "num_ps": 1,
    "devices_per_task": 1,
    "accumulate_steps": 1,
    "startup_timeout": 1,
}
_SECONDS = ("checkpoint_secs", "startup_timeout")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The options of one run. Each field is the flag of the same name.

    `None` in `train_steps`, `batch_size`, `optimizer` or `learning_rate` means
    "the experiment's own"; an experiment function sees the first two filled in.

    Raises:
        UsageError: a value is out of range, or two contradict each other.
    """

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
    accumulate_steps: int = 1
    gradient_dtype: str = "float32"
    devices_per_task: int | None = None
    seed: int = 0
    steps_per_loop: int | None = None
    eval_every: int = 0
    checkpoint_every: int = 1000
    checkpoint_secs: float = 600.0
    keep_checkpoints: int = 5
    summary_every: int = 100
    log_every: int = 100
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

    def __post_init__(self):
        _check_choice("strategy", self.strategy, STRATEGIES)
        _check_choice("cluster", self.cluster, CLUSTER_SOURCES)
        _check_choice("gradient_dtype", self.gradient_dtype, GRADIENT_DTYPES)
        _check_choice("data_sharding", self.data_sharding, DATA_SHARDINGS)
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if value is None:
                continue
            if name not in _SECONDS and not isinstance(value, numbers.Integral):
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
        if self.learning_rate is not None:
            _check_number("learning_rate", self.learning_rate)
            if not self.learning_rate > 0:
                raise errors.UsageError(
                    f"--learning_rate={self.learning_rate} would not train anything. "
                    "Give a number above 0."
                )

    def _check_one_device(self) -> None:
        if self.gradient_dtype != "float32":
            raise errors.UsageError(
                f"--gradient_dtype={self.gradient_dtype} is for gradients that "
                "replicas exchange, which they do not under "
                f"--strategy={self.strategy}. Leave it out, or use --strategy=sync."
            )
        if (self.devices_per_task or 1) > 1:
            raise errors.UsageError(
                f"--devices_per_task={self.devices_per_task}, but a task of "
                f"--strategy={self.strategy} uses one device. Leave it out, or use "
                "--strategy=mirrored (one machine) or sync (several)."
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


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise errors.UsageError(
            f"--{name}={value} is unknown. Choose one of: {', '.join(choices)}."
            + errors.did_you_mean(value, choices)
        )


def _check_number(name: str, value: Any) -> None:
    if not isinstance(value, numbers.Real):
        raise errors.UsageError(f"--{name}={value!r} is not a number. Give one.")
