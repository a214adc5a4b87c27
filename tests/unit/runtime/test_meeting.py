"""What a task sets before it meets the others."""

from tensorflow.python.eager import context

from dtrain.runtime import meeting


def test_threads_that_share_processors_rest_when_idle(monkeypatch):
    own = context.context()
    monkeypatch.setattr(own, "_config", None)
    assert not own.config.experimental.disable_thread_spinning
    meeting._rest_when_idle()
    assert own.config.experimental.disable_thread_spinning


def test_what_a_user_has_configured_stays(monkeypatch):
    own = context.context()
    monkeypatch.setattr(own, "_config", None)
    theirs = own.config
    theirs.gpu_options.per_process_gpu_memory_fraction = 0.5
    monkeypatch.setattr(own, "_config", theirs)
    meeting._rest_when_idle()
    assert own.config.gpu_options.per_process_gpu_memory_fraction == 0.5
    assert own.config.experimental.disable_thread_spinning
