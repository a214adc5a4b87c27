"""Signals that ask to stop, noted while a run can save."""

import os
import signal
import threading

import pytest

from dtrain.launch.signals import ASKING, Signals


@pytest.fixture(autouse=True)
def same_handlers_afterwards():
    before = {signum: signal.getsignal(signum) for signum in ASKING}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.mark.parametrize("signum", ASKING)
def test_a_signal_is_noted_and_not_obeyed(signum):
    with Signals() as signals:
        signal.raise_signal(signum)
        assert signals.received == [signum]


def test_handlers_are_put_back():
    def mine(signum, frame):
        seen.append(signum)

    seen = []
    signal.signal(signal.SIGTERM, mine)
    with Signals() as signals:
        assert signal.getsignal(signal.SIGTERM) is not mine
    assert signal.getsignal(signal.SIGTERM) is mine
    signal.raise_signal(signal.SIGTERM)
    assert seen == [signal.SIGTERM]
    assert signals.received == []


def test_handlers_are_put_back_when_the_run_fails():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError), Signals():
        raise ValueError
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("signum", ASKING)
def test_before_there_is_anything_to_save_a_signal_stops_at_once(signum):
    with Signals(at_once=True) as signals:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signum)
        assert signals.received == [signum]


def test_a_second_signal_does_not_wait():
    with Signals() as signals:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert signals.received == [signal.SIGTERM, signal.SIGINT]


def test_from_then_on_a_signal_waits_for_a_checkpoint():
    with Signals(at_once=True) as signals:
        signals.at_once = False
        signal.raise_signal(signal.SIGTERM)
        assert signals.received == [signal.SIGTERM]


def test_a_signal_that_is_ignored_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with Signals() as signals:
        signal.raise_signal(signal.SIGHUP)
        assert signals.received == []
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_other_threads_note_nothing_and_do_not_fail():
    def run():
        with Signals() as signals:
            handlers.append(signal.getsignal(signal.SIGTERM))
        received.append(signals.received)

    handlers, received = [], []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGTERM)]
    assert received == [[]]


def test_a_signal_from_outside_is_noted_too():
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == [signal.SIGTERM]
