"""Checkpoints that cannot be read, or cannot be written: none costs an older one."""

import errno
import os
import resource

import numpy as np
import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.session import checkpoints as checkpoints_lib

DATA = ".data-00000-of-00001"


def cut(share):
    return lambda content: content[: int(len(content) * share)]


def flip(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


DAMAGES = [
    pytest.param(ending, damage, id=f"{name} {kind}")
    for name, ending in (("index", ".index"), ("data", DATA))
    for kind, damage in (
        ("empty", cut(0)),
        ("half", cut(0.5)),
        ("almost whole", cut(0.99)),
        ("flipped", flip),
        ("noise", lambda content: b"\x5a" * len(content)),
    )
]


def harm(store, step, ending, damage):
    path = store.path(step) + ending
    with open(path, "rb") as file:
        content = file.read()
    with open(path, "wb") as file:
        file.write(damage(content))


# Reading.


@pytest.mark.parametrize(("ending", "damage"), DAMAGES)
def test_a_damaged_one_is_passed_over_and_both_are_named(ending, damage, store):
    store.save(1, 2, 3)
    harm(store, 3, ending, damage)
    assert store.restore() == 2
    first, second = store.lines
    start = f"Warning: {store.path(3)} is damaged and passed over: "
    assert first.startswith(start)
    assert len(first) > len(start) + 5
    assert second == (
        f"Warning: in its place {store.path(2)} is used. What is damaged is called "
        "damaged-ckpt-... now."
    )


@pytest.mark.parametrize(("ending", "damage"), DAMAGES)
def test_a_damaged_one_is_set_aside_as_it_is(ending, damage, store):
    store.save(1, 2, 3)
    harm(store, 3, ending, damage)
    before = {path.name: path.read_bytes() for path in store.folder.glob("ckpt-3.*")}
    assert store.restore() == 2
    assert store.steps == [1, 2]
    aside = store.folder.glob("damaged-*")
    after = {path.name: path.read_bytes() for path in aside}
    assert after == {f"damaged-{name}": content for name, content in before.items()}
    assert store.restore() == 2
    assert store.lines == []


def test_nothing_is_set_aside_before_a_whole_one_is_found(store, monkeypatch):
    def fail(*args):
        raise PermissionError(errno.EACCES, "no access")

    store.save(1, 2)
    harm(store, 2, ".index", cut(0))
    with monkeypatch.context() as patch, pytest.raises(PermissionError):
        patch.setattr(tf.train.Checkpoint, "read", fail)
        store.restore()
    assert store.steps == [1, 2]


def test_a_number_that_is_damaged_alone_is_noticed(store):
    """All but one byte can be read, the names of the variables too."""
    store.save(1, 2)
    number = np.float32(2).tobytes()

    def harm_number(content):
        assert content.count(number) == 1
        return content.replace(number, number[::-1])

    harm(store, 2, DATA, harm_number)
    assert store.restore() == 1
    assert f"{store.path(2)} is damaged" in store.lines[0]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (IndexError("Read less bytes than requested"), True),
        (tf.errors.DataLossError(None, None, "x"), True),
        (tf.errors.NotFoundError(None, None, "x"), True),
        (tf.errors.OutOfRangeError(None, None, "x"), True),
        (tf.errors.OpError(None, None, "Checksum does not match", 2), True),
        (tf.errors.UnavailableError(None, None, "x"), False),
        (tf.errors.InvalidArgumentError(None, None, "x"), False),
        (OSError(errno.EACCES, "x"), False),
        (ValueError("x"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_damage_is_told_from_other_errors(error, expected):
    assert checkpoints_lib.is_damage(error) is expected


def test_one_without_its_data_is_passed_over(store):
    store.save(1, 2)
    os.remove(store.path(2) + DATA)
    assert store.restore() == 1
    assert f"{store.path(2)} is damaged" in store.lines[0]


def test_one_without_its_index_is_none(store):
    store.save(1, 2)
    os.remove(store.path(2) + ".index")
    assert store.restore() == 1
    assert store.lines == []
    assert not list(store.folder.glob("ckpt-2.*"))


def test_several_damaged_ones_are_passed_over(store):
    store.save(1, 2, 3)
    harm(store, 3, DATA, cut(0))
    harm(store, 2, ".index", cut(0))
    assert store.restore() == 1
    named = [step for line in store.lines for step in (3, 2, 1) if f"-{step} " in line]
    assert named == [3, 2, 1]


def test_an_older_one_that_is_damaged_concerns_nobody(store):
    store.save(1, 2)
    harm(store, 1, DATA, cut(0))
    assert store.restore() == 2
    assert store.lines == []


def test_if_all_are_damaged_the_run_does_not_start(store):
    store.save(1, 2)
    for step in (1, 2):
        harm(store, step, ".index", cut(0.5))
    with pytest.raises(errors.UsageError) as caught:
        store.restore()
    message = str(caught.value)
    assert message.startswith(f"--model_dir={store.folder}: none of the checkpoints")
    assert "(ckpt-2, ckpt-1)" in message


def test_a_damaged_one_is_replaced_when_its_step_comes_again(store):
    store.save(1, 2)
    harm(store, 2, DATA, cut(0))
    assert store.restore() == 1
    store.save(2)
    assert store.restore() == 2
    assert store.lines == []


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_a_damaged_one_does_not_hinder_those_that_come_after_it(keep, store):
    store.save(10, 20, 30)
    harm(store, 30, DATA, cut(0))
    for before, after in ((20, 23), (23, 26), (26, 29)):
        store.start(keep)
        assert store.checkpoints.restore() == store.path(before)
        store.save(after)
    assert store.restore() == 29
    assert store.steps == [10, 20, 23, 26, 29][-keep:]
    store.save(30)
    assert store.restore() == 30
    assert store.lines == []


def test_an_error_that_is_no_damage_is_not_hidden(store, monkeypatch):
    def fail(*args):
        raise PermissionError(errno.EACCES, "no access")

    store.save(1, 2)
    monkeypatch.setattr(tf.train.Checkpoint, "read", fail)
    with pytest.raises(PermissionError):
        store.restore()


def test_a_lost_connection_is_no_damage(store, monkeypatch):
    def fail(*args):
        raise tf.errors.UnavailableError(None, None, "ps:0 is gone")

    store.save(1, 2)
    monkeypatch.setattr(tf.train.Checkpoint, "read", fail)
    with pytest.raises(tf.errors.UnavailableError):
        store.restore()
    monkeypatch.setattr(tf.train.Checkpoint, "write", fail)
    with pytest.raises(tf.errors.UnavailableError):
        store.save(3)


# Writing.


def no_space():
    return OSError(errno.ENOSPC, "No space left on device")


def exhausted():
    return tf.errors.ResourceExhaustedError(None, None, "No space left on device")


def fail_to_write(patch, error):
    write = tf.train.Checkpoint.write

    def fail(self, path, options=None):
        write(self, path, options)
        os.remove(path + ".index")
        raise error

    patch.setattr(tf.train.Checkpoint, "write", fail)


def fail_to_rename(patch, error):
    def fail(source, target):
        raise error

    patch.setattr(os, "replace", fail)


def fail_to_sync(patch, error):
    def fail(descriptor):
        raise error

    patch.setattr(os, "fsync", fail)


@pytest.mark.parametrize("make_error", [no_space, exhausted])
@pytest.mark.parametrize("fail", [fail_to_write, fail_to_rename, fail_to_sync])
def test_a_full_disk_fails_the_run_and_costs_no_older_one(
    fail, make_error, store, monkeypatch
):
    store.start(keep=2)
    store.save(1, 2)
    with monkeypatch.context() as patch, pytest.raises(errors.TrainingFailed) as caught:
        fail(patch, make_error())
        store.save(3)
    message = str(caught.value)
    assert message.startswith(f"{store.path(3)} could not be written (")
    assert "MiB are free there" in message
    assert "No space left on device" in message
    assert "Intact: ckpt-1, ckpt-2." in message
    assert not list(store.folder.glob("draft-*"))
    assert store.steps == [1, 2]
    assert tf.train.latest_checkpoint(str(store.folder)) == store.path(2)
    assert store.restore() == 2
    store.save(3)  # there is room again
    assert store.restore() == 3


def test_where_there_is_no_older_one_that_is_said(store, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(errors.TrainingFailed) as caught:
        fail_to_write(patch, no_space())
        store.save(1)
    assert "There is no older one." in str(caught.value)
    assert list(store.folder.iterdir()) == []


def test_a_list_that_cannot_be_written_costs_no_checkpoint(store, monkeypatch):
    def fail(*args, **kwargs):
        raise exhausted()

    store.start(keep=1)
    store.save(1)
    with monkeypatch.context() as patch, pytest.raises(errors.TrainingFailed) as caught:
        patch.setattr(store.checkpoints, "_write_state", fail)
        store.save(2)
    assert "Intact: ckpt-1, ckpt-2." in str(caught.value)
    assert store.restore() == 2


def test_a_file_that_may_not_grow_is_a_full_disk(store):
    """The system itself refuses, in TensorFlow's own writer."""
    store.save(1)
    big = tf.Variable(tf.zeros([1 << 17]))
    store.checkpoints._checkpoint.big = big
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, hard))
    try:
        with pytest.raises(errors.TrainingFailed, match="could not be written"):
            store.save(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
    assert not list(store.folder.glob("draft-*"))
    assert store.restore() == 1


# Copies, as of the best one.


def test_a_copy_outlives_its_original(store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("best")
    store.start(keep=1)
    store.save(1)
    path = checkpoints_lib.copy(store.path(1), str(folder))
    assert path == str(folder / "ckpt-1")
    store.save(2)
    assert store.steps == [2]
    assert store.read(path) == 1


def test_a_copy_takes_no_other_away_until_that_is_wanted(store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("best")
    store.save(1, 2, 3)
    paths = [checkpoints_lib.copy(store.path(step), str(folder)) for step in (1, 3, 2)]
    assert checkpoints_lib.find(str(folder)) == sorted(paths)
    (folder / "best.json").write_text("{}")
    checkpoints_lib.remove_others(paths[1])
    assert {path.name.split(".")[0] for path in folder.iterdir()} == {"best", "ckpt-3"}
    assert store.read(paths[1]) == 3
    assert store.steps == [1, 2, 3]


def test_where_there_are_no_links_bytes_are_copied(
    store, tmp_path_factory, monkeypatch
):
    def fail(source, target):
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "link", fail)
    folder = tmp_path_factory.mktemp("best")
    store.save(1)
    path = checkpoints_lib.copy(store.path(1), str(folder))
    assert store.read(path) == 1
    assert sorted(os.listdir(folder)) == ["ckpt-1" + DATA, "ckpt-1.index"]


def test_a_copy_of_the_same_step_is_the_newer_one(store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("best")
    store.save(1)
    checkpoints_lib.copy(store.path(1), str(folder))
    store.number.assign(100)
    store.checkpoints.save(1)
    path = checkpoints_lib.copy(store.path(1), str(folder))
    assert store.read(path) == 100


@pytest.mark.parametrize(
    "left",
    [[], [DATA], [".index"]],
    ids=["nothing is left", "its data is left", "its index is left"],
)
def test_one_that_is_deleted_takes_no_copy_away(left, store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("best")
    store.save(1, 2)
    before = checkpoints_lib.copy(store.path(1), str(folder))
    for ending in {DATA, ".index"} - set(left):
        os.remove(store.path(2) + ending)
    with pytest.raises(FileNotFoundError):
        checkpoints_lib.copy(store.path(2), str(folder))
    assert checkpoints_lib.find(str(folder)) == [before]
