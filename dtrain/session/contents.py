"""What a checkpoint holds, by names that people know.

TensorFlow finds variables again by how one gets to them from the checkpoint's root
("weights/3"). Beside them, a checkpoint of dtrain keeps the names that Keras gives
("batch_normalization/moving_mean"): to tell what differs between two models, and to
take over weights by name.
"""

import collections
import json
import re
from typing import Any

import keras
import tensorflow as tf

_NAMES = "names"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_NAMES_KEY = f"{_NAMES}/.ATTRIBUTES/py_state"
_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
# What belongs to a run and not to its model: it may come and go.
_OPTIONAL = re.compile(r"loss_scale/|save_counter$|_CHECKPOINTABLE|names/")
_OPTIMIZER = "the optimizer's class"  # a key that no variable has
_MOST_NAMED = 10


class Names(tf.train.experimental.PythonState):
    """The names of a checkpoint's variables, to be saved with them.

    Args:
        checkpoint: to whose variables they belong, and which holds this.
    """

    def __init__(self, checkpoint: tf.train.Checkpoint):
        self._checkpoint = checkpoint

    def serialize(self) -> str:
        names = {key: name for key, (name, _) in find(self._checkpoint)}
        return json.dumps({**names, _OPTIMIZER: _class_of(self._checkpoint)})

    def deserialize(self, text: str) -> None:
        """Does nothing: the names of a run are those of its own model."""


def find(checkpoint: tf.train.Checkpoint) -> list[tuple[str, tuple[str, str]]]:
    """Returns (key, (name, form)) of each variable that a checkpoint will hold.

    Keys are made as TensorFlow makes them: the shortest way from the root.
    """
    view = tf.train.TrackableView(checkpoint)
    seen, found = {id(checkpoint)}, []
    queue = collections.deque([(checkpoint, "")])
    while queue:
        node, path = queue.popleft()
        if isinstance(node, (tf.Variable, keras.Variable)):
            is_keras = isinstance(node, keras.Variable)
            name = node.path if is_keras else path
            form = _show(tuple(node.shape), tf.as_dtype(node.dtype))
            found.append((path, (name, form)))
        for name, child in view.children(node).items():
            if id(child) not in seen:
                seen.add(id(child))
                name = name.replace(".", "..").replace("/", ".S")
                queue.append((child, f"{path}/{name}" if path else name))
    return found


def differences(checkpoint: tf.train.Checkpoint, path: str) -> list[str]:
    """Returns what a file holds otherwise than a checkpoint wants it, in words.

    Raises:
        OSError, tf.errors.OpError: the file cannot be read.
    """
    reader = tf.train.load_checkpoint(path)
    dtypes = reader.get_variable_to_dtype_map()
    there = {
        key.removesuffix(_VALUE): _show(tuple(shape), dtypes[key])
        for key, shape in reader.get_variable_to_shape_map().items()
        if key.endswith(_VALUE) and not _OPTIONAL.match(key.removesuffix(_VALUE))
    }
    names = _names_in(reader)
    here = {k: v for k, v in dict(find(checkpoint)).items() if not _OPTIONAL.match(k)}
    lines = []
    ours, theirs = _class_of(checkpoint), names.get(_OPTIMIZER)
    if theirs and ours != theirs:
        lines.append(f"the optimizer is {ours} here, and {theirs} in the checkpoint")
    for key, (name, form) in here.items():
        if key not in there:
            lines.append(f"{name} {form} is not in the checkpoint")
        elif there[key] != form:
            old = names.get(key, name)
            was = f"{old} " if old != name else ""
            lines.append(
                f"{name} is {form} here, and {was}{there[key]} in the checkpoint"
            )
    for key in sorted(there.keys() - here.keys()):
        name = names.get(key, key)
        lines.append(f"{name} {there[key]} is in the checkpoint alone")
    return lines


def _class_of(checkpoint: tf.train.Checkpoint) -> str:
    return getattr(getattr(checkpoint, "optimizer", None), "kind", "")


def show(lines: list[str]) -> str:
    """Returns a list for people, of which only the first ones are shown."""
    more = len(lines) - _MOST_NAMED
    shown = lines[:_MOST_NAMED] + ([f"and {more} more"] if more > 0 else [])
    return "".join(f"\n  {line}" for line in shown)


def weights_in(path: str) -> dict[str, Any]:
    """Returns what weights a file has, by name, and how to read each.

    Args:
        path: of a checkpoint of dtrain or of TF1, or of a .keras file.

    Returns:
        Name to (shape, function that returns the value).

    Raises:
        ValueError: a checkpoint without names.
        OSError, tf.errors.OpError: the file cannot be read.
    """
    if path.endswith(".keras"):
        # A Lambda layer's code, for instance, is not run.
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
        return {v.path: (tuple(v.shape), v.numpy) for v in model.variables}
    reader = tf.train.load_checkpoint(path)
    shapes = reader.get_variable_to_shape_map()
    if _NAMES_KEY in shapes:
        names = _names_in(reader)
        keys = {
            name: f"{key}{_VALUE}"
            for key, name in names.items()
            if key.startswith("weights/")
        }
    elif _GRAPH_KEY in shapes:
        raise ValueError("it has no names of variables, as checkpoints of dtrain have")
    else:  # TF1 names variables in checkpoints
        keys = {name: name for name in shapes}
    return {
        name: (tuple(shapes[key]), lambda key=key: reader.get_tensor(key))
        for name, key in keys.items()
        if key in shapes
    }


def numbered_anew(names: list[str]) -> dict[str, str]:
    """Returns names as they are in a process that has built no model before.

    Keras numbers layers of one kind through a whole process, in the order in which they
    are made: "dense_4" and "dense_7" are "dense" and "dense_1" in another one.
    """
    kinds: dict[str, set[int]] = {}
    for name in names:
        for part in name.split("/"):
            kind, number = _split(part)
            kinds.setdefault(kind, set()).add(number)
    order = {kind: sorted(numbers) for kind, numbers in kinds.items()}

    def renumber(part: str) -> str:
        kind, number = _split(part)
        index = order[kind].index(number)
        return f"{kind}_{index}" if index else kind

    return {
        name: "/".join(renumber(part) for part in name.split("/")) for name in names
    }


def _split(part: str) -> tuple[str, int]:
    """Returns kind and number of a layer's name: "dense" is the first, number 0."""
    kind, number = re.fullmatch(r"(.*?)(?:_(\d+))?", part).groups()
    return kind, int(number or 0)


def _names_in(reader: Any) -> dict[str, str]:
    if _NAMES_KEY not in reader.get_variable_to_shape_map():
        return {}
    return json.loads(reader.get_tensor(_NAMES_KEY))


def _show(shape: tuple, dtype: tf.DType) -> str:
    """Returns what a variable is like, for people: "(64, 10)", and what is unusual."""
    kind = "" if dtype == tf.float32 else f" {dtype.name}"
    return f"({', '.join(map(str, shape))}){kind}"
