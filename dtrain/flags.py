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
    MODES,
    PRECISIONS,
    PRIVATE_NETWORKS,
    SCHEDULES,
    STRATEGIES,
    RunConfig,
)

# A registry of its own: a user's module may define flags with the same names.
FLAGS = flags.FlagValues()

_STRING, _INT, _FLOAT = flags.DEFINE_string, flags.DEFINE_integer, flags.DEFINE_float
_BOOL = flags.DEFINE_boolean

# name: (define, help). The defaults are RunConfig's.
_TABLE = {
    "mode": (
        _STRING,
        f"What to do: {', '.join(MODES)}. The last two need only --model_dir.",
    ),
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
    "learning_rate_schedule": (
        _STRING,
        f"How the rate falls: {', '.join(SCHEDULES)} (default: the experiment's own).",
    ),
    "warmup_steps": (_INT, "Steps in which the rate rises from 0, before all else."),
    "decay_steps": (
        _INT,
        "Steps after warm-up in which the rate falls to 0 (cosine), or by --decay_rate "
        "(exponential; default: up to --train_steps).",
    ),
    "decay_rate": (_FLOAT, "What the rate is multiplied by (exponential, piecewise)."),
    "decay_boundaries": (_STRING, "Steps, with commas, at which it is (piecewise)."),
    "clip_norm": (_FLOAT, "Norm to which the whole gradient is clipped."),
    "weight_decay": (_FLOAT, "Weight decay, in place of the optimizer's own."),
    "mixed_precision": (
        _STRING,
        f"What the model computes in, with float32 weights: {', '.join(PRECISIONS)}.",
    ),
    "accumulate_steps": (_INT, "Micro-batches a replica before one update."),
    "gradient_dtype": (
        _STRING,
        "What gradients travel in between replicas (sync, mirrored), and weights and "
        f"gradients between workers and ps: {', '.join(GRADIENT_DTYPES)}.",
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
    "init_checkpoint": (
        _STRING,
        "Weights to start from, by name and shape: a checkpoint, a model directory, or "
        "a .keras file.",
    ),
    "evaluator": (_BOOL, "Give a local cluster a task that evaluates checkpoints."),
    "best_metric": (
        _STRING,
        "Metric by which the best checkpoint is kept, in best/; min: or max: may stand "
        "before it.",
    ),
    "early_stop_patience": (
        _INT,
        "Evaluations without a better --best_metric (default: loss) after which "
        "training stops; 0: never.",
    ),
    "eval_every": (_INT, "Steps between evaluations; 0: only at the end."),
    "checkpoint_every": (_INT, "Steps between checkpoints; 0: only at the end."),
    "checkpoint_secs": (
        _FLOAT,
        "Seconds after which a checkpoint is due in any case; 0: never.",
    ),
    "keep_checkpoints": (_INT, "How many checkpoints stay."),
    "keep_checkpoint_every_hours": (
        _FLOAT,
        "Hours after which one more checkpoint stays for ever; 0: none does.",
    ),
    "export_dir": (
        _STRING,
        "Where a SavedModel and a .keras file go at the end (default of --mode=export: "
        "export/ in the model directory).",
    ),
    "summary_every": (_INT, "Steps between summaries; 0: none but evaluations."),
    "log_every": (_INT, "Steps between lines of progress; 0: none."),
    "log_workers": (_BOOL, "A line for each worker's own steps, too."),
    "profile_steps": (
        _STRING,
        "Global steps A,B: a profile of what the chief (ps: every task) does between.",
    ),
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
    "job_name": (_STRING, "This task's job: chief, worker, ps or evaluator."),
    "task_index": (_INT, "This task's index in its job."),
    "startup_timeout": (_FLOAT, "Seconds to wait for the other tasks to appear."),
    "heartbeat_timeout": (
        _FLOAT,
        "Seconds of silence after which a task counts as lost.",
    ),
    "chief_timeout": (
        _FLOAT,
        "Seconds without a chief after which a ps or worker leaves.",
    ),
    "supervise": (
        _BOOL,
        "Start this task again when it is lost; the tasks of a local cluster always "
        "are.",
    ),
    "max_restarts": (_INT, "How often a task is started again at most."),
    "private_network": (
        _STRING,
        f"Give a local cluster a network of its own: {', '.join(PRIVATE_NETWORKS)}.",
    ),
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
    text = re.sub(r"\('Non-boolean argument.*", "neither true nor false.", text)
    return re.sub(r"could not convert string to float.*", "not a number.", text)
