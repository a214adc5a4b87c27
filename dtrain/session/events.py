"""Event files for TensorBoard, one folder a run."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorboard.plugins.histogram import metadata as histogram_metadata
from tensorboard.plugins.hparams import api as hparams_api
from tensorboard.plugins.hparams import api_pb2, summary
from tensorboard.plugins.scalar import summary_v2 as scalar_summary

from dtrain import version
from dtrain.config import RunConfig

# What runs are compared by; of the others, none changes what is learnt, or how fast.
_HPARAMS = (
    "strategy",
    "train_steps",
    "epochs",
    "batch_size",
    "accumulate_steps",
    "optimizer",
    "learning_rate",
    "learning_rate_schedule",
    "warmup_steps",
    "clip_norm",
    "weight_decay",
    "mixed_precision",
    "gradient_dtype",
    "seed",
)


class Events:
    """Writes the event files of one run below a model directory.

    Args:
        model_dir: the log directory.
        run: name of the folder.
    """

    def __init__(self, model_dir: str, run: str):
        self._path = os.path.join(model_dir, run)
        self._writer: tf.summary.SummaryWriter | None = None

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes numbers, by tag; all of them in one record."""
        messages = [
            scalar_summary.scalar_pb(tag, np.float32(value))
            for tag, value in values.items()
        ]
        # Messages end to end are one message that has the values of all.
        record = b"".join(message.SerializeToString() for message in messages)
        with self._at(step):
            tf.summary.experimental.write_raw_pb(record, step=step)

    def histogram(self, step: int, tag: str, counts: np.ndarray, text: str) -> None:
        """Writes how often there was 0, 1, 2, ...

        Args:
            counts: float or int, (n,).
            text: what it tells, for people.
        """
        edges = np.arange(len(counts) + 1) - 0.5  # a bucket is (left, right, count)
        buckets = np.stack([edges[:-1], edges[1:], counts], 1)
        metadata = histogram_metadata.create_summary_metadata(None, text)
        with self._at(step):
            tf.summary.write(tag, buckets, metadata=metadata)

    def texts(self, step: int, texts: Mapping[str, str]) -> None:
        """Writes texts in Markdown, by tag."""
        with self._at(step):
            for tag, text in texts.items():
                tf.summary.text(tag, text)

    def hparams(
        self, values: Mapping[str, Any], metrics: Sequence[str], trial: str
    ) -> None:
        """Tells the HParams plugin what is run and what to compare.

        Args:
            values: name to number, text or bool.
            metrics: tags of this run.
            trial: tells apart runs with the same values.
        """
        known = [hparams_api.HParam(name) for name in values]
        shown = [hparams_api.Metric(tag) for tag in metrics]
        with self._at(0):
            hparams_api.hparams_config(known, shown)
            hparams_api.hparams(dict(values), trial_id=trial)

    def end_of_hparams(self) -> None:
        """Tells the plugin that the run has ended well."""
        message = summary.session_end_pb(api_pb2.STATUS_SUCCESS)
        with self._at(0):
            tf.summary.experimental.write_raw_pb(message.SerializeToString(), step=0)

    def flush(self) -> None:
        """Has all on the disk."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Ends the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _at(self, step: int) -> Any:
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._path)
        return self._writer.as_default(step=step)


def evaluation(results: Mapping[str, float]) -> dict[str, float]:
    """Returns an evaluation's results by their tags."""
    return {
        f"eval/{name}": value for name, value in results.items() if name != "examples"
    }


def hparams_of(config: RunConfig, learning_rate: float, optimizer: str) -> dict:
    """Returns what the HParams plugin compares runs by.

    Args:
        config: without gaps.
        learning_rate: after warm-up.
        optimizer: its name.
    """
    given = {name: getattr(config, name) for name in _HPARAMS}
    if config.epochs is not None:
        given["train_steps"] = None
    values = {name: value for name, value in given.items() if value is not None}
    return {
        **values,
        "optimizer": optimizer,
        "learning_rate": float(f"{learning_rate:.6g}"),
    }


def flags_text(config: RunConfig) -> str:
    """Returns a run's flags as a table in Markdown; those that were given are bold."""
    rows = ["| flag | value |", "|---|---|"]
    for name, value in vars(config).items():
        row = f"--{name}", str(value)
        if value != getattr(RunConfig, name):
            row = f"**{row[0]}**", f"**{row[1]}**"
        rows.append(f"| {row[0]} | {row[1]} |")
    return f"dtrain {version.__version__}\n\n" + "\n".join(rows)
