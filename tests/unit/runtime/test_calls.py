"""Calls to functions that a process has under a name."""

import pytest
import tensorflow as tf

from dtrain.runtime import calls


@pytest.fixture(autouse=True)
def answers():
    """What this process answers, and a list of what it was asked."""
    asked = []

    def note(*args):
        asked.append(args)
        return b"\0binary\xff" if args else b""

    def fail():
        raise ValueError("no such data")

    calls.answer("test_note", note)
    calls.answer("test_fail", fail)
    return asked


def test_a_call_brings_what_was_passed_and_what_is_returned(answers):
    args = tf.constant("text"), tf.constant(2**40, tf.int64)
    result = calls.call("test_note", *args)
    assert result.numpy() == b"\0binary\xff"
    ((text, number),) = answers
    assert (text, number) == (b"text", 2**40)


def test_a_call_without_arguments_may_return_nothing():
    assert calls.call("test_note").numpy() == b""


def test_a_function_calls_each_time_that_it_runs(answers):
    @tf.function(autograph=False)
    def ask(number):
        answer = calls.call("test_note", number)
        assert answer.shape == []
        return answer

    for number in range(3):
        assert ask(tf.constant(number)).numpy() == b"\0binary\xff"
    assert [int(number) for (number,) in answers] == [0, 1, 2]


def test_the_last_answer_counts():
    calls.answer("test_note", lambda: b"new")
    assert calls.call("test_note").numpy() == b"new"


@pytest.mark.parametrize(
    ("name", "text"),
    [("test_fail", "no such data"), ("test_nobody", "test_nobody")],
    ids=["raises", "unknown"],
)
def test_a_call_that_fails_says_why(name, text):
    with pytest.raises(tf.errors.OpError, match=text):
        calls.call(name)
