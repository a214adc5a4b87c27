"""The trained model for others: a SavedModel and a .keras file, without dtrain."""

import os
import shutil
from typing import Any

import keras
import tensorflow as tf

from dtrain import errors
from dtrain.console import Console

SAVED_MODEL = "saved_model"
KERAS_FILE = "model.keras"


def export(
    model: keras.Model, batch_spec: Any, folder: str, console: Console
) -> list[str]:
    """Writes a model; returns the paths. What was there before is replaced at the end.

    Args:
        model: in this process.
        batch_spec: of batches (x, y[, sample_weight]) that it takes.
        folder: made if it is not there.
        console: for a warning if Keras cannot write the model as a file.

    Raises:
        TrainingFailed: nothing could be written.
    """
    draft = os.path.join(folder, "draft-export")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        os.makedirs(draft)
        model.export(
            os.path.join(draft, SAVED_MODEL),
            format="tf_saved_model",
            verbose=False,
            input_signature=_signature(model, batch_spec),
        )
        try:
            model.save(os.path.join(draft, KERAS_FILE))
        except (NotImplementedError, TypeError, ValueError) as error:
            # One with parts that do not say what they are made of: its own business.
            for place in (draft, folder):  # half of one, or one of another model
                if os.path.exists(os.path.join(place, KERAS_FILE)):
                    os.remove(os.path.join(place, KERAS_FILE))
            console.line(
                f"Warning: Keras cannot write {KERAS_FILE}: {errors.describe(error)}. "
                "The SavedModel is whole."
            )
        return [_replace(draft, name, folder) for name in sorted(os.listdir(draft))]
    except (OSError, tf.errors.OpError) as error:
        raise errors.TrainingFailed(
            f"--export_dir={folder}: the model could not be written: "
            f"{errors.tidy(str(error))} The checkpoints are whole: mend that, and give "
            "the same command with --mode=export."
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _signature(model: keras.Model, batch_spec: Any) -> list[Any] | None:
    """Returns the inputs of one call, for any number of examples."""
    if hasattr(model, "inputs"):  # Keras knows them, with their names
        return None
    return [
        tf.nest.map_structure(
            lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype),
            batch_spec[0],
        )
    ]


def _replace(draft: str, name: str, folder: str) -> str:
    target = os.path.join(folder, name)
    if os.path.isdir(target):
        shutil.rmtree(target)
    os.replace(os.path.join(draft, name), target)
    return target
