"""Which checkpoints stay, and what is left when a run dies while it saves."""

import os

import pytest
import tensorflow as tf

from dtrain.session import checkpoints as checkpoints_lib

HOUR = 3600


class Death(BaseException):
    """The end of a process, as far as one process can play it."""


def die(*args, **kwargs):
    raise Death


# How many stay.


@pytest.mark.parametrize(
    ("keep", "left"), [(1, [5]), (2, [4, 5]), (5, [1, 2, 3, 4, 5])]
)
def test_the_last_ones_stay(keep, left, store):
    store.start(keep)
    store.save(1, 2, 3, 4, 5)
    assert store.steps == left
    names = {path.name.split(".")[0] for path in store.folder.glob("ckpt-*")}
    assert names == {f"ckpt-{step}" for step in left}


def test_the_last_ones_are_the_highest_steps(store):
    store.save(8, 9, 10, 11)
    assert store.steps == [9, 10, 11]


def test_fewer_stay_once_fewer_are_wanted(store):
    store.save(1, 2, 3)
    store.start(keep=2)
    assert store.steps == [1, 2, 3]
    store.save(4)
    assert store.steps == [3, 4]


def test_a_step_that_is_saved_again_is_one_checkpoint(store):
    store.save(1, 2)
    store.number.assign(2)
    store.checkpoints.save(2)
    store.save(3)
    assert store.steps == [1, 2, 3]
    assert store.restore() == 3


def save_every(store, minutes, steps, restarts):
    for step in steps:
        if restarts:
            store.start(keep=2, hours=1)
        store.clock.advance(minutes * 60)
        store.save(step)


@pytest.mark.parametrize("restarts", [False, True], ids=["one run", "restarts"])
def test_one_an_hour_stays_for_ever(restarts, store):
    store.start(keep=2, hours=1)
    # Saved at 0:24, 0:48, 1:12 and so on: 1:12 and 2:24 are an hour apart.
    save_every(store, 24, range(1, 11), restarts)
    assert store.steps == [3, 6, 9, 10]


def test_a_restart_knows_when_the_last_one_stayed(store):
    store.start(keep=1, hours=1)
    store.clock.advance(HOUR)
    store.save(1, 2)
    assert store.steps == [1, 2]
    store.start(keep=1, hours=1)
    store.clock.advance(HOUR / 2)
    store.save(3, 4)
    assert store.steps == [1, 4]
    store.clock.advance(HOUR / 2)
    store.save(5, 6)
    assert store.steps == [1, 5, 6]


def test_what_stays_for_ever_does_not_count_after_a_restart(store):
    store.start(keep=1, hours=1)
    store.clock.advance(HOUR)
    store.save(1, 2)
    store.start(keep=2)
    store.save(3, 4, 5)
    assert store.steps == [1, 4, 5]


def test_none_stays_for_ever_if_none_is_wanted(store):
    store.start(keep=1)
    for step in (1, 2, 3):
        store.clock.advance(100 * HOUR)
        store.save(step)
    assert store.steps == [3]


def test_without_a_list_of_them_all_count(store):
    store.save(1, 2, 3)
    (store.folder / "checkpoint").unlink()
    store.start()
    store.save(4)
    assert store.steps == [2, 3, 4]


def test_without_a_list_the_files_tell_their_age(store):
    store.save(1, 2)
    for step, hours in ((1, 0), (2, 2)):
        saved = store.clock() + hours * HOUR
        os.utime(store.path(step) + ".index", (saved, saved))
    (store.folder / "checkpoint").unlink()
    store.start(keep=1, hours=1)
    store.clock.advance(3 * HOUR)
    store.save(3)
    assert store.steps == [2, 3]


def test_what_was_just_saved_stays_whatever_its_step(store):
    store.start(keep=1)
    store.save(10, 5)
    assert store.steps == [5]
    assert store.read(store.path(5)) == 5
    assert tf.train.latest_checkpoint(str(store.folder)) == store.path(5)


# What is found.


def test_there_may_be_none(store):
    assert store.restore() is None
    assert checkpoints_lib.find(str(store.folder / "nowhere")) == []


def test_only_whole_names_are_checkpoints(store):
    store.save(5)
    for name in ("ckpt-6.data-00000-of-00001", "ckpt-x.index", "my-ckpt-7.index"):
        (store.folder / name).write_text("")
    assert store.steps == [5]
    assert store.restore() == 5


def test_the_newest_is_the_one_with_the_highest_step(store):
    store.save(9, 10)
    os.utime(store.path(9) + ".index")
    assert store.restore() == 10


def test_tensorflow_reads_the_list(store):
    store.save(1, 2, 3, 4)
    folder = str(store.folder)
    assert tf.train.latest_checkpoint(folder) == store.path(4)
    state = tf.train.get_checkpoint_state(folder)
    listed = list(state.all_model_checkpoint_paths)
    assert listed == [store.path(step) for step in (2, 3, 4)]
    assert store.read(store.path(4)) == 4


def test_the_list_is_right_where_the_folder_is_moved_to(store):
    store.save(1, 2)
    moved = store.folder / "moved"
    moved.mkdir()
    for path in store.folder.glob("c*"):
        path.rename(moved / path.name)
    assert tf.train.latest_checkpoint(str(moved)) == str(moved / "ckpt-2")
    store.folder = moved
    assert store.restore() == 2
    store.save(3, 4)
    assert store.steps == [2, 3, 4]


# When a run dies while it saves.


def test_one_that_is_not_listed_yet_is_found_and_counted(store, monkeypatch):
    store.save(1, 2, 3)
    monkeypatch.setattr(store.checkpoints, "_write_state", die)
    with pytest.raises(Death):
        store.save(4)
    assert store.restore() == 4
    store.save(5)
    assert store.steps == [3, 4, 5]
    assert store.lines == []


@pytest.mark.parametrize("num_files", [0, 1])
def test_one_whose_files_have_no_name_yet_is_none(num_files, store, monkeypatch):
    store.save(1, 2)
    replace, replaced = os.replace, []

    def replace_some(source, target):
        if len(replaced) == num_files:
            raise Death
        replaced.append(target)
        replace(source, target)

    with monkeypatch.context() as patch, pytest.raises(Death):
        patch.setattr(os, "replace", replace_some)
        store.save(3)
    assert store.restore() == 2
    assert store.lines == []
    store.save(3)
    assert store.restore() == 3


def test_what_is_on_the_disk_has_its_name_only_then(store, monkeypatch):
    order = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor):
        order.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def note_replace(source, target):
        order.append(("name", target))
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", note_fsync)
        patch.setattr(os, "replace", note_replace)
        store.save(7)
    draft = str(store.folder / "draft-ckpt-7" / "ckpt")
    data = ".data-00000-of-00001"
    assert order == [
        ("sync", draft + data),
        ("name", store.path(7) + data),
        ("sync", draft + ".index"),
        ("name", store.path(7) + ".index"),
        ("sync", str(store.folder)),
        ("name", str(store.folder / "checkpoint")),
    ]


def test_older_ones_go_only_when_the_new_one_is_listed(store, monkeypatch):
    store.start(keep=1)
    store.save(1)
    remove, seen = os.remove, []

    def look(path):
        seen.append(tf.train.latest_checkpoint(str(store.folder)))
        remove(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "remove", look)
        store.save(2)
    assert set(seen) == {store.path(2)}


def test_drafts_are_removed_at_the_next_start(store):
    store.save(1)
    draft = store.folder / "draft-ckpt-2"
    draft.mkdir()
    (draft / "ckpt.index").write_text("half")
    assert store.restore() == 1
    assert not draft.exists()
    assert store.steps == [1]


def test_data_without_an_index_is_removed_at_the_next_start(store):
    store.save(1)
    left = [store.folder / f"ckpt-2.data-0000{i}-of-00002" for i in range(2)]
    others = [
        store.folder / name
        for name in ("my-ckpt-2.data-00000-of-00001", "ckpt-x.data-00000-of-00001")
    ]
    for path in (*left, *others):
        path.write_text("half")
    assert store.restore() == 1
    assert not [path for path in left if path.exists()]
    assert all(path.exists() for path in others)
    assert store.lines == []


def test_no_draft_is_left_by_a_save(store):
    store.save(1)
    names = sorted(path.name for path in store.folder.iterdir())
    assert names == ["checkpoint", "ckpt-1.data-00000-of-00001", "ckpt-1.index"]
