"""Weights to start from: heir of `tf.train.init_from_checkpoint` and warm starts."""

import os
from collections.abc import Callable

import keras
import tensorflow as tf

from dtrain import errors
from dtrain.console import Console
from dtrain.session import checkpoints, contents


def take(source: str, model: keras.Model, console: Console) -> None:
    """Takes over every weight that a file has by the same name and shape.

    Names are compared as they are; as they would be in a process that builds its first
    model; and without the name of the model itself, which TF1 did not have: in the way
    in which most of them fit.

    Args:
        source: a checkpoint (of dtrain, or TF1), a directory of them, or a .keras
            file.
        model: whose variables are overwritten, wherever they are.
        console: for the list of what was taken and what was not.

    Raises:
        UsageError: there is nothing to take.
    """
    path = _newest(source)
    wanted = {v.path: v for v in model.variables if v.name != "seed_generator_state"}
    try:
        weights = contents.weights_in(path)
        there, here = _rename(weights, wanted)
        values = {
            name: there[name][1]()
            for name, variable in here.items()
            if _fits(there.get(name), variable)
        }
    except (OSError, LookupError, ValueError, TypeError, tf.errors.OpError) as error:
        raise errors.UsageError(
            f"--init_checkpoint={source} cannot be read: {errors.tidy(str(error))} "
            "Give a checkpoint (without .index), a model directory, or a .keras file."
        ) from error
    taken, left = [], []
    for name, variable in here.items():
        if name not in there:
            left.append(f"{variable.path} is not in the checkpoint")
            continue
        if name not in values:
            shapes = tuple(variable.shape), there[name][0]
            left.append(f"{variable.path} is {shapes[0]} here, and {shapes[1]} there")
            continue
        variable.assign(values[name])
        taken.append(variable.path)
    unused = sorted(there.keys() - here.keys())
    left += [f"{name} {there[name][0]} is in the checkpoint alone" for name in unused]
    if not taken:
        raise errors.UsageError(
            f"--init_checkpoint={source}: no weight there has the name and shape of "
            f"one of this model's:{contents.show(left)}"
        )
    console.line(
        f"Weights from {path}: {len(taken)} taken, {len(left)} not."
        + contents.show([f"taken: {name}" for name in taken])
        + contents.show([f"not taken: {line}" for line in left])
    )
    console.log("\n".join(["All of them:", *taken, "Not taken:", *left]))


def _newest(source: str) -> str:
    if not os.path.isdir(source):
        return source.removesuffix(".index")
    found = checkpoints.find(source)
    path = found[-1] if found else tf.train.latest_checkpoint(source)
    if path is None:
        raise errors.UsageError(
            f"--init_checkpoint={source}: there is no checkpoint in this directory."
        )
    return path


def _rename(weights: dict, wanted: dict) -> tuple[dict, dict]:
    """Returns both by the names under which most are the same."""
    ways: list[Callable[[list[str]], dict[str, str]]] = [
        lambda names: {name: name for name in names},
        contents.numbered_anew,
        _without_root,
    ]
    renamed = []
    for way in ways:
        there, here = (
            {names[name]: value for name, value in values.items()}
            for values in (weights, wanted)
            for names in [way(list(values))]
        )
        fitting = sum(_fits(there.get(name), v) for name, v in here.items())
        renamed.append((fitting, there, here))
    _, there, here = max(renamed, key=lambda ways: ways[0])
    return there, here


def _fits(weight: tuple | None, variable: keras.Variable) -> bool:
    return weight is not None and weight[0] == tuple(variable.shape)


def _without_root(names: list[str]) -> dict[str, str]:
    """Returns names, numbered anew, without a first part that all share."""
    anew = contents.numbered_anew(names)
    roots = {name.split("/")[0] for name in anew.values()}
    if len(roots) > 1:
        return anew
    return {name: new.partition("/")[2] or new for name, new in anew.items()}
