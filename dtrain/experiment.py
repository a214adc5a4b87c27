"""What to train, never where: `Experiment`, and finding one by its name."""

import dataclasses
import glob
import importlib
import importlib.util
import io
import itertools
import os
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

import cloudpickle
import numpy as np

from dtrain import config as config_lib
from dtrain import errors

# Arrays of at least this size are mapped into memory where they are used.
_LARGE_BYTES = 1 << 20

PACKAGED = ("digits_mlp", "mnist_mlp", "mnist_cnn")


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What to train. All that creates variables or data is a factory.

    Attributes:
        model: `() -> keras.Model`; called where the strategy wants the variables to
            be: once, or once for each replica of a process. Each call has to build
            a new one.
        optimizer: `() -> keras.optimizers.Optimizer`.
        loss: a Keras loss, or `(y_true, y_pred) -> loss per example`; for a model
            with several outputs a list or dict of them, as in Keras `compile`.
        train_data: `(ctx) -> data`, which shards by the `InputContext` or not, as it
            likes; or `() -> data`, of which pipeline i of n then gets every n-th
            batch, or every n-th row of arrays. Called in the process that uses it: a
            worker's own. Data is a `tf.data.Dataset` of batches (x, y) or (x, y,
            sample_weight), a `keras.utils.PyDataset` or a generator of such, or a
            tuple of arrays. It is gone through over and over.
        eval_data: the same, finite; `None` for no evaluation. Called by the chief.
        metrics: `() -> [keras.metrics.Metric, ...]`, or by output as `loss`.
        loss_weights: `None`, or one weight an output, in the structure of `loss`.
        callbacks: `() -> [dtrain.Callback, ...]`, run on the chief.

    Raises:
        UsageError: a field that must be a function is none.
    """

    model: Callable[[], Any]
    optimizer: Callable[[], Any]
    loss: Any
    train_data: Callable[..., Any]
    eval_data: Callable[..., Any] | None = None
    metrics: Callable[[], Any] = list
    loss_weights: Any = None
    callbacks: Callable[[], list] = list

    def __post_init__(self):
        optional = ("eval_data",)
        for name in (
            "model",
            "optimizer",
            "train_data",
            "eval_data",
            "metrics",
            "callbacks",
        ):
            value = getattr(self, name)
            if not callable(value) and not (value is None and name in optional):
                raise errors.UsageError(
                    f"Experiment({name}={value!r}) is not a function. Everything "
                    "that makes variables or data is a function, because the "
                    f"strategy decides where it is called: {name}=lambda: ..."
                )
            # A Keras model is callable, but with inputs: not a factory.
            if hasattr(value, "trainable_variables") and not isinstance(value, type):
                raise errors.UsageError(
                    f"Experiment({name}=...) got a {type(value).__name__} that is "
                    f"already built. Give a function that builds it: {name}=lambda: ..."
                )


def defaults(**values: Any):
    """Declares an experiment function's own `train_steps` and `batch_size`.

    ```python
    @dtrain.defaults(train_steps=5000, batch_size=100)
    def experiment(config):   # config.batch_size is 100, or what the flag says
        ...
    ```

    Raises:
        UsageError: a name that is no field an experiment may set.
    """
    allowed = ("train_steps", "batch_size")
    for name in values:
        if name not in allowed:
            raise errors.UsageError(
                f"dtrain.defaults({name}=...) is not possible. An experiment "
                f"declares {' and '.join(allowed)}; the rest are flags of the run."
            )

    def mark(function):
        function.dtrain_defaults = dict(values)
        return function

    return mark


def find(name: str) -> Callable[[config_lib.RunConfig], Experiment]:
    """Returns the experiment function that a name stands for.

    Args:
        name: one that comes with the package, `package.module:function`, or the
            path of a file that `save` wrote.

    Raises:
        UsageError: there is no such experiment, or its module fails to import.
    """
    if name.endswith(".pickle"):
        return _load(name)
    check_name(name)
    if ":" not in name:
        name = f"dtrain.experiments.{name}:experiment"
    module_name, function_name = name.split(":", 1)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name + ".").startswith(error.name + "."):
            raise _no_module(name, error.name) from error
        raise _failed(f"--experiment={name}: importing {module_name}", error) from error
    except Exception as error:
        raise _failed(f"--experiment={name}: importing {module_name}", error) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value)]
        raise errors.UsageError(
            f"--experiment={name}: {getattr(module, '__file__', None) or module_name} "
            f"has no function {function_name!r}."
            + errors.did_you_mean(function_name, known)
        )
    return function


def check_name(name: str) -> None:
    """Checks a name as far as that is possible without importing anything.

    Raises:
        UsageError: it is neither a packaged experiment nor module:function.
    """
    module, colon, function = name.partition(":")
    if name in PACKAGED or name.endswith(".pickle"):
        return
    if not colon:
        raise errors.UsageError(
            f"--experiment={name} is unknown. The package has: {', '.join(PACKAGED)}. "
            "Your own is package.module:function." + errors.did_you_mean(name, PACKAGED)
        )
    if not all(part.isidentifier() for part in (*module.split("."), function)):
        raise errors.UsageError(
            f"--experiment={name} is no package.module:function. For a file "
            "my_model.py with a function experiment write my_model:experiment."
        )
    _add_working_directory()
    package = module.split(".")[0]
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        raise _no_module(name, package)


def display_name(name: str) -> str:
    """Returns what to call an experiment: a file's name without folder and ending."""
    return os.path.basename(name).removesuffix(".pickle")


def build(
    function: Callable[[config_lib.RunConfig], Experiment],
    config: config_lib.RunConfig,
) -> tuple[Experiment, config_lib.RunConfig]:
    """Calls an experiment function with a config that has no gaps.

    Returns:
        The experiment, and the config with `train_steps` and `batch_size` set.

    Raises:
        UsageError: the function raises, or returns no `Experiment`.
    """
    config = complete(function, config)
    try:
        result = function(config)
    except errors.DtrainError:
        raise
    except Exception as error:
        raise _failed(f"Experiment {config.experiment}", error) from error
    if not isinstance(result, Experiment):
        raise errors.UsageError(
            f"Experiment {config.experiment} returned a {type(result).__name__}. "
            "It must return dtrain.Experiment(model=..., optimizer=..., ...)."
        )
    return result, config


def complete(function: Callable, config: config_lib.RunConfig) -> config_lib.RunConfig:
    """Returns the config with what the experiment function declares filled in."""
    if config.epochs is not None and config.train_steps is not None:
        raise errors.UsageError(
            f"--epochs={config.epochs} and --train_steps={config.train_steps} both say "
            "when to stop. Leave one of them out."
        )
    config = config.with_defaults(getattr(function, "dtrain_defaults", {}))
    return config.with_defaults(
        {
            "train_steps": config_lib.DEFAULT_TRAIN_STEPS,
            "batch_size": config_lib.DEFAULT_BATCH_SIZE,
        }
    )


def save(function: Callable, path: str) -> None:
    """Writes an experiment function to a file that other processes can load.

    What the function's own script or notebook defines travels with it; modules
    are imported again where it is loaded. Large arrays that it refers to are written
    beside the file: a process that loads it maps them into memory, so that only those
    read them that use them, and processes of one machine share them.

    Raises:
        UsageError: it refers to something that cannot be pickled.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, path).dump(function)
    except Exception as error:
        raise errors.UsageError(
            f"Experiment {getattr(function, '__name__', function)!r} cannot be sent "
            f"to the tasks of a local cluster: {error}. It refers to something that "
            "belongs to this process, such as a model, a file, a lock or absl's FLAGS: "
            "make it, or read it, inside the function."
        ) from error
    with open(path, "wb") as file:
        file.write(buffer.getbuffer())


def forget(path: str) -> None:
    """Deletes the arrays that `save` wrote beside a file."""
    for array in glob.glob(f"{glob.escape(path)}-*.npy"):
        os.remove(array)


class _Pickler(cloudpickle.CloudPickler):
    """One that writes large arrays to files of their own."""

    def __init__(self, file: BinaryIO, path: str):
        super().__init__(file)
        self._path = path
        self._arrays = itertools.count()

    def reducer_override(self, obj: Any) -> Any:
        is_large = isinstance(obj, np.ndarray) and obj.nbytes >= _LARGE_BYTES
        if is_large and not obj.dtype.hasobject:
            path = f"{self._path}-{next(self._arrays)}.npy"
            np.save(path, np.asarray(obj))
            return _map_array, (path,)
        return super().reducer_override(obj)


def _map_array(path: str) -> np.ndarray:
    # Copy-on-write: who changes it changes it for this process.
    return np.load(path, mmap_mode="c")


def _load(path: str) -> Callable:
    try:
        with open(path, "rb") as file:
            return cloudpickle.load(file)
    except FileNotFoundError as error:
        raise errors.UsageError(
            f"--experiment={path} needs {error.filename}, which is not there. What a "
            "script gives to dtrain.train is kept for that run alone: have the script "
            'call dtrain.train(function, dtrain.RunConfig(mode="eval", ...)) instead.'
        ) from error
    except Exception as error:
        raise _failed(f"Loading the experiment from {path}", error) from error


def _add_working_directory() -> None:
    """Lets modules be found where the command was started.

    A console script has its own folder on the path, not the user's.
    """
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())


def _no_module(name: str, module: str) -> errors.UsageError:
    return errors.UsageError(
        f"--experiment={name}: there is no module {module!r} in {os.getcwd()} or on "
        "PYTHONPATH. Start the command where it is, or install it."
    )


def _failed(what: str, error: Exception) -> errors.UsageError:
    """Makes the error for user code that raised."""
    return errors.UsageError(f"{what} failed: {errors.describe(error)}.")
