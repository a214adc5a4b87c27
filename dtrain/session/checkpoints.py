"""Checkpoints on disk: written whole or not at all, and the newest whole one found.

A checkpoint is written in a folder of its own and then renamed, its index last. So
whatever moment the process dies at, what is called `ckpt-STEP.index` belongs to a whole
checkpoint, and older ones are as they were. `checkpoint` beside them is TensorFlow's
list: which one is the newest, and which are to go in time.
"""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator

import tensorflow as tf

from dtrain import errors
from dtrain.console import Console
from dtrain.session import contents

_INDEX = re.compile(r"ckpt-(\d+)\.index")
_DATA = re.compile(r"(ckpt-\d+)\.data-\d+-of-\d+")
_DRAFT = "draft-ckpt-"
_SET_ASIDE = "damaged-"
_STATE = "checkpoint"  # as TensorFlow calls it


def find(folder: str) -> list[str]:
    """Returns the paths of a folder's checkpoints, by step."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    steps = sorted(int(match[1]) for match in map(_INDEX.fullmatch, names) if match)
    return [os.path.join(folder, f"ckpt-{step}") for step in steps]


def step_of(path: str) -> int:
    """Returns the global step of a checkpoint."""
    return int(path.rpartition("-")[2])


class Damaged(errors.UsageError):
    """A checkpoint that cannot be read as a whole."""


def is_damage(error: BaseException) -> bool:
    """Returns whether an error of reading a checkpoint says that files are damaged."""
    kinds = (
        IndexError,
        tf.errors.DataLossError,
        tf.errors.NotFoundError,
        tf.errors.OutOfRangeError,
    )
    return isinstance(error, kinds) or type(error) is tf.errors.OpError


def copy(path: str, folder: str) -> str:
    """Copies a checkpoint, by links where that is possible; returns the new path.

    Args:
        path: of the checkpoint.
        folder: where to; made if it is not there.

    Raises:
        FileNotFoundError: it is not there, or goes meanwhile.
    """
    os.makedirs(folder, exist_ok=True)
    target = os.path.join(folder, os.path.basename(path))
    files = sorted(_files(path), key=_is_index)
    if not files or not _is_index(files[-1]) or len(files) < 2:
        raise FileNotFoundError(path)
    _remove(target)
    for file in files:
        name = os.path.join(folder, os.path.basename(file))
        try:
            os.link(file, name)
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or one without links
            shutil.copyfile(file, name + ".tmp")
            os.replace(name + ".tmp", name)
    return target


@contextlib.contextmanager
def hold(path: str, folder: str) -> Iterator[str]:
    """Keeps what a checkpoint is, whoever deletes it meanwhile; gives a path of it.

    Args:
        path: of the checkpoint.
        folder: for that time; deleted then.

    Raises:
        FileNotFoundError: it is not there (any more).
    """
    os.makedirs(folder, exist_ok=True)
    try:
        yield copy(path, folder)
    finally:
        shutil.rmtree(folder)


def remove_others(path: str) -> None:
    """Deletes all checkpoints beside one."""
    for other in find(os.path.dirname(path)):
        if other != path:
            _remove(other)


class Checkpoints:
    """The checkpoints of a model directory.

    Args:
        folder: the model directory, which nobody else writes to.
        checkpoint: what is saved and restored.
        options: how.
        keep: how many stay.
        keep_every_hours: after so many hours one more stays for ever; 0: none does.
        console: for warnings.
        now: the time, in seconds since 1970.
    """

    def __init__(
        self,
        folder: str,
        checkpoint: tf.train.Checkpoint,
        options: tf.train.CheckpointOptions | None,
        keep: int,
        keep_every_hours: float,
        console: Console,
        now: Callable[[], float] = time.time,
    ):
        checkpoint.names = contents.Names(checkpoint)
        self._folder = folder
        self._checkpoint = checkpoint
        self._options = options
        self._keep = keep
        self._keep_every = keep_every_hours * 3600
        self._console = console
        self._now = now
        self._times, self._kept_at = self._read_state()
        self._tidy_up()

    def save(self, step: int) -> str:
        """Writes a checkpoint; returns its path.

        Raises:
            TrainingFailed: it cannot be written; those that were there are as before.
        """
        path = os.path.join(self._folder, f"ckpt-{step}")
        with self._drafted(str(step), path) as draft:
            self._rename(draft, path)
            self._times[path] = self._now()
            leaving = self._choose_leaving(path)
            self._write_state(path)
            for old in leaving:
                _remove(old)
        return path

    def rehearse(self) -> None:
        """Writes what a checkpoint would hold, and deletes it again.

        What TensorFlow has done once it can do again while a worker is cut off; what is
        new to it is sent to every worker first.
        """
        with self._drafted("rehearsal", os.path.join(self._folder, "rehearsal")):
            pass

    @contextlib.contextmanager
    def _drafted(self, name: str, path: str) -> Iterator[str]:
        """Gives a folder with all that is to be saved; deletes what is left of it.

        Args:
            name: of the draft.
            path: of what is to become of it, for messages.
        """
        draft = os.path.join(self._folder, f"{_DRAFT}{name}")
        try:
            os.makedirs(draft, exist_ok=True)
            with _without_functions():
                self._checkpoint.write(os.path.join(draft, "ckpt"), self._options)
            yield draft
        except tf.errors.UnavailableError:
            raise
        except (tf.errors.OpError, OSError) as error:
            raise self._not_written(path, error) from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def restore(self) -> str | None:
        """Takes over the newest checkpoint that is whole; returns its path.

        Returns:
            `None` if there is no checkpoint.

        Raises:
            UsageError: it is a different model's, or none is whole.
        """
        damaged = []
        for path in reversed(find(self._folder)):
            try:
                self._read(path)
            except tf.errors.UnavailableError:
                raise
            except Exception as error:
                if not is_damage(error):
                    raise
                damaged.append(path)
                self._console.line(
                    f"Warning: {path} is damaged and passed over: "
                    f"{errors.tidy(str(error))}"
                )
                continue
            if damaged:
                self._console.line(
                    f"Warning: in its place {path} is used. What is damaged is called "
                    f"{_SET_ASIDE}ckpt-... now."
                )
                for other in damaged:
                    self._set_aside(other)
                self._write_state(path)
            return path
        if damaged:
            raise errors.UsageError(
                f"--model_dir={self._folder}: none of the checkpoints there can be "
                f"read ({', '.join(map(os.path.basename, damaged))}). Bring one back, "
                "or start in an empty directory."
            )
        return None

    def _set_aside(self, path: str) -> None:
        """Takes a damaged checkpoint out of the ones that count, index first."""
        self._times.pop(path, None)
        for file in sorted(_files(path), key=_is_index, reverse=True):
            name = os.path.join(self._folder, _SET_ASIDE + os.path.basename(file))
            os.replace(file, name)

    def _tidy_up(self) -> None:
        """Removes what a run left that died while it saved or deleted."""
        for name in os.listdir(self._folder):
            path = os.path.join(self._folder, name)
            data = _DATA.fullmatch(name)
            if name.startswith(_DRAFT):
                shutil.rmtree(path)
            elif data and not os.path.exists(
                os.path.join(self._folder, f"{data[1]}.index")
            ):
                os.remove(path)

    def _read(self, path: str) -> None:
        lines = contents.differences(self._checkpoint, path)
        if lines:
            raise errors.UsageError(
                f"{path} does not fit this model and optimizer:{contents.show(lines)}\n"
                "Use the --experiment and --optimizer that made it, or another "
                "--model_dir, with --init_checkpoint to take over what fits."
            )
        # All that has to be there is: what may be missing starts anew.
        self._checkpoint.read(path, self._options).expect_partial()

    def _rename(self, draft: str, path: str) -> None:
        """Gives a whole checkpoint its name, the index last."""
        _remove(path)
        for file in sorted(os.listdir(draft), key=_is_index):
            whole = os.path.join(draft, file)
            _sync(whole)
            os.replace(whole, path + file.removeprefix("ckpt"))
        _sync(self._folder)

    def _choose_leaving(self, newest: str) -> list[str]:
        """Takes out of the list what is to go, and what is to stay for ever."""
        leaving = []
        while len(self._times) > self._keep:
            oldest = min(self._times.keys() - {newest}, key=step_of)
            saved_at = self._times.pop(oldest)
            if self._keep_every and saved_at - self._kept_at >= self._keep_every:
                self._kept_at = saved_at
            else:
                leaving.append(oldest)
        return leaving

    def _read_state(self) -> tuple[dict[str, float], float]:
        """Returns when each checkpoint that may go was saved; and the last that stays.

        One that is newer than all that are listed was saved by a run that died then.
        """
        there = find(self._folder)
        state = tf.train.get_checkpoint_state(self._folder)
        if state is None:
            times = {path: os.path.getmtime(f"{path}.index") for path in there}
            return times, self._now()
        listed = dict(
            zip(
                state.all_model_checkpoint_paths,
                state.all_model_checkpoint_timestamps,
                strict=False,
            )
        )
        last = max(map(step_of, listed), default=-1)
        times = {
            path: listed.get(path, self._now())
            for path in there
            if path in listed or step_of(path) > last
        }
        return times, state.last_preserved_timestamp or self._now()

    def _write_state(self, newest: str) -> None:
        # TensorFlow takes the last one for the newest.
        paths = [*sorted(self._times.keys() - {newest}, key=step_of), newest]
        times = [self._times.get(path, self._now()) for path in paths]
        state = tf.compat.v1.train.generate_checkpoint_state_proto(
            self._folder,
            os.path.basename(newest),
            [os.path.basename(path) for path in paths],
            all_model_checkpoint_timestamps=times,
            last_preserved_timestamp=self._kept_at,
        )
        name = os.path.join(self._folder, _STATE)
        with open(name + ".tmp", "w") as file:
            file.write(str(state))
        os.replace(name + ".tmp", name)

    def _not_written(self, path: str, error: Exception) -> errors.TrainingFailed:
        free = shutil.disk_usage(self._folder).free / 2**20
        left = [os.path.basename(other) for other in find(self._folder)]
        there = f"Intact: {', '.join(left)}." if left else "There is no older one."
        return errors.TrainingFailed(
            f"{path} could not be written ({free:,.1f} MiB are free there): "
            f"{errors.tidy(str(error))} {there} Make room, and start the same "
            "command again."
        )


@contextlib.contextmanager
def _without_functions() -> Iterator[None]:
    """Runs TensorFlow's own functions as Python, operation by operation.

    A function that is traced is sent to every worker first, and the caller waits for
    all of them, with Python locked: for a quarter of an hour, if one is cut off. Saving
    would trace one each time.
    """
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


def _files(path: str) -> list[str]:
    folder, name = os.path.split(path)
    own = re.compile(re.escape(name) + r"\.(index|data-\d+-of-\d+)")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [os.path.join(folder, file) for file in names if own.fullmatch(file)]


def _is_index(file: str) -> bool:
    return file.endswith(".index")


def _remove(path: str) -> None:
    """Deletes a checkpoint, its index first: what is left then is none."""
    for file in sorted(_files(path), key=_is_index, reverse=True):
        os.remove(file)


def _sync(path: str) -> None:
    """Has a file, or what a folder lists, on the disk before anything that follows."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
