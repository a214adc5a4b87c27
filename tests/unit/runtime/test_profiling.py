"""Profiles of this process: begun, ended, and dropped."""

import os

import tensorflow as tf

from dtrain.runtime import profiling


def folders():
    return [folder.name for folder in profiling._folders]


def test_a_profile_comes_as_bytes_and_leaves_nothing_behind():
    profiling.start()
    (folder,) = folders()
    tf.constant(1) + tf.constant(2)
    assert profiling.stop()
    assert not os.path.exists(folder)
    assert folders() == []


def test_a_profile_that_nobody_wants_makes_room_for_another():
    profiling.start()
    (folder,) = folders()
    profiling.drop()
    assert not os.path.exists(folder)
    profiling.start()
    assert profiling.stop()


def test_where_nothing_is_profiled_there_is_nothing_to_drop():
    profiling.drop()
    profiling.drop()


def test_a_task_that_is_gone_has_no_profile(monkeypatch):
    def fail(task, name):
        raise tf.errors.UnavailableError(None, None, "worker:0 is gone")

    monkeypatch.setattr(profiling, "_call", fail)
    assert profiling.stop_at(None) == b""
