"""Every flag of the command line, and its way to a `RunConfig`.

Nobody else reads flags: the rest of the package sees a `RunConfig`, whose fields
have the flags' names.
"""

import dataclasses
import re
from collections.abc import Sequence

from absl import flags

from dtrain import errors, version
from dtrain.cluster import sources
from dtrain.config import (
    CLUSTER_SOURCES,
    DATA_SHARDINGS,
    GRADIENT_DTYPES,
    STRATEGIES,
    RunConfig,
)

# A registry of its own: a user's module may define flags with the same names.
FLAGS = flags.FlagValues()

_STRING, _INT, _FLOAT = flags.DEFINE_string, flags.DEFINE_integer, flags.DEFINE_float

# name: (define, help). The defaults are RunConfig's.
_TABLE = {
    "strategy": (_STRING, f"How to train: {', '.join(STRATEGIES)}."),
    "experiment": (
        _STRING,
        "What to train: digits_mlp, mnist_mlp, mnist_cnn, or package.module:function.",
    ),
    "model_dir": (
        _STRING,
        "Where checkpoints, event files and logs go; an existing one is resumed "
        "(default: runs/EXPERIMENT-DATE-TIME).",
    ),
    "data_dir": (_STRING, "Where the experiment's files are."),
    "data_sharding": (
        _STRING,
        f"Who reads what: {', '.join(DATA_SHARDINGS)}. Worker i of n takes every n-th; "
        "the chief deals out as they ask; all read all.",
    ),
    "train_steps": (
        _INT,
        "Global step to stop at (default: the experiment's own).",
    ),
    "epochs": (_INT, "Passes over the training data, in place of --train_steps."),
    "batch_size": (_INT, "Examples a replica (default: the experiment's own)."),
    "optimizer": (
        _STRING,
        "Keras optimizer by name, at its own defaults, in place of the experiment's.",
    ),
    "learning_rate": (
        _FLOAT,
        "Learning rate in place of the experiment's; of a schedule that does not "
        "start from it, too.",
    ),
    "accumulate_steps": (_INT, "Micro-batches a replica before one update."),
    "gradient_dtype": (
        _STRING,
        f"What travels between replicas: {', '.join(GRADIENT_DTYPES)} (sync, "
        "mirrored).",
    ),
    "devices_per_task": (
        _INT,
        "Replicas in a process (default: all GPUs, else 1). Without GPUs, more than "
        "1 is for --strategy=mirrored only: that many parts of the CPU.",
    ),
    "seed": (_INT, "Seed of the initial weights, shuffles and dropout."),
    "steps_per_loop": (
        _INT,
        "Steps packed in one call of a worker (default: chosen by measuring).",
    ),
    "eval_every": (_INT, "Steps between evaluations; 0: only at the end."),
    "checkpoint_every": (_INT, "Steps between checkpoints; 0: only at the end."),
    "checkpoint_secs": (
        _FLOAT,
        "Seconds after which a checkpoint is due in any case; 0: never.",
    ),
    "keep_checkpoints": (_INT, "How many checkpoints stay."),
    "summary_every": (_INT, "Steps between summaries; 0: none but evaluations."),
    "log_every": (_INT, "Steps between lines of progress; 0: none."),
    "result_file": (_STRING, "Where the chief writes the result, as JSON."),
    "num_workers": (_INT, "Workers of a local cluster."),
    "num_ps": (_INT, "Parameter servers of a local cluster."),
    "cluster": (
        _STRING,
        f"Where the cluster is described: {', '.join(CLUSTER_SOURCES)}.",
    ),
    "ps_hosts": (_STRING, "host:port of every ps, comma-separated."),
    "worker_hosts": (_STRING, "host:port of every worker, comma-separated."),
    "chief_host": (_STRING, "host:port of the chief (default: worker 0 is it)."),
    "job_name": (_STRING, "This task's job: chief, worker or ps."),
    "task_index": (_INT, "This task's index in its job."),
    "startup_timeout": (_FLOAT, "Seconds to wait for the other tasks to appear."),
}

_DEFAULTS = {field.name: field.default for field in dataclasses.fields(RunConfig)}


class _Done(Exception):
    """A flag such as --help asked for text and nothing else."""


class _TextFlag(flags.BooleanFlag):
    """A flag that prints a text and ends the command with status 0."""

    def __init__(self, name: str, help_text: str, text):
        self._text = text
        super().__init__(name, False, help_text, allow_hide_cpp=True)

    def parse(self, argument):
        super().parse(argument)
        if self.value:
            print(self._text())
            raise _Done


def _define() -> None:
    for name, (define, help_text) in _TABLE.items():
        define(
            name, _DEFAULTS[name], help_text, flag_values=FLAGS, module_name=__name__
        )
    for flag in (
        _TextFlag("help", "Show these flags.", lambda: _usage(full=False)),
        _TextFlag("helpfull", "Show the flags of absl too.", lambda: _usage(full=True)),
        _TextFlag(
            "version", "Show the version.", lambda: f"dtrain {version.__version__}"
        ),
    ):
        flags.DEFINE_flag(flag, FLAGS, module_name=__name__)


def _usage(full: bool) -> str:
    body = FLAGS.get_help() if full else FLAGS.module_help(__name__)
    return (
        "Trains a Keras model on a cluster.\n\n"
        "  python -m dtrain.main --strategy=ps\n\n"
        f"dtrain {version.__version__}. Flags:\n{body}"
    )


_define()


def parse(argv: Sequence[str]) -> RunConfig | None:
    """Reads a command line.

    Args:
        argv: the program's name and its arguments.

    Returns:
        The config, or `None` after --help or --version.

    Raises:
        UsageError: an unknown flag, a value of the wrong type, a leftover argument,
            or a value that `RunConfig` refuses.
    """
    try:
        leftovers = FLAGS(list(argv))[1:]
    except _Done:
        return None
    except flags.Error as error:
        raise errors.UsageError(
            f"{_one_line(error)}\n--help lists the flags."
        ) from error
    except OSError as error:  # --flagfile=FILE
        raise errors.UsageError(f"--flagfile: {error}.") from error
    if leftovers:
        raise errors.UsageError(sources.leftover_message(leftovers))
    return RunConfig(**{name: FLAGS[name].value for name in _TABLE})


def _one_line(error: flags.Error) -> str:
    text = " ".join(str(error).split())
    # What int() and float() say is for programmers.
    text = re.sub(r"invalid literal for int.*", "not a whole number.", text)
    return re.sub(r"could not convert string to float.*", "not a number.", text)
