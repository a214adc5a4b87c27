"""The kinds of failure, their exit statuses, and what messages say."""

import json
import signal
import threading

import cloudpickle
import pytest

from dtrain import config, errors


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.UsageError("x"), 2),
        (errors.TaskUnavailable("x"), 3),
        (errors.GivenUp("x"), 3),
        (errors.TasksLost("x", []), 3),
        (errors.TrainingFailed("x"), 4),
        (errors.DtrainError("x"), 4),
        (errors.Interrupted(signal.SIGHUP), 129),
        (errors.Interrupted(signal.SIGINT), 130),
        (errors.Interrupted(signal.SIGTERM), 143),
    ],
    ids=repr,
)
def test_every_kind_has_its_exit_status(error, status):
    assert error.exit_status == status
    assert isinstance(error, errors.DtrainError)


def test_an_interruption_names_its_signal():
    error = errors.Interrupted(signal.SIGTERM)
    assert (str(error), error.signum) == ("Stopped by SIGTERM.", signal.SIGTERM)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (2, errors.UsageError),
        (3, errors.GivenUp),
        (4, errors.TrainingFailed),
        (1, errors.GivenUp),
        (-9, errors.GivenUp),
        (130, errors.Interrupted),
        (143, errors.Interrupted),
        (255, errors.GivenUp),  # no signal has the number 127
    ],
)
def test_an_exit_status_becomes_the_error_that_it_stands_for(status, kind):
    error = errors.from_status(status, "It failed.")
    assert type(error) is kind
    if kind is errors.Interrupted:
        assert error.exit_status == status
    else:
        assert str(error) == "It failed."


@pytest.mark.parametrize(
    ("given", "suggestion"),
    [("wroker", " Did you mean worker?"), ("chief", ""), ("", "")],
)
def test_suggestions_are_made_only_where_a_name_is_near(given, suggestion):
    assert errors.did_you_mean(given, iter(["ps", "worker"])) == suggestion


def caught(function):
    try:
        function()
    except Exception as error:
        return error


def raise_here():
    raise ValueError("\n  first line \nsecond line")


def fail_in_a_library():
    json.loads("?")


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (raise_here, "ValueError: first line"),
        (fail_in_a_library, "JSONDecodeError: Expecting value: line 1 column 1 (char"),
    ],
)
def test_a_foreign_error_is_described_by_kind_first_line_and_the_users_line(
    function, what
):
    line = function.__code__.co_firstlineno + 1
    text = errors.describe(caught(function))
    assert text.startswith(what)
    assert text.endswith(f"({__file__}, line {line})")
    assert "\n" not in text


@pytest.mark.parametrize(
    "function",
    [
        lambda: config.RunConfig().with_defaults({"no_field": 1}),  # raises in dtrain
        lambda: cloudpickle.dumps(threading.Lock()),  # raises in an installed package
    ],
    ids=["dtrain", "package"],
)
def test_the_place_is_the_users_and_not_in_dtrain_nor_in_a_package(function):
    line = function.__code__.co_firstlineno
    assert errors.describe(caught(function)).endswith(f"({__file__}, line {line})")


def test_an_error_without_a_message_or_a_place():
    assert errors.describe(ValueError()) == "ValueError: "


# What TensorFlow says.

NODE = "{{node while/body/IteratorGetNext}}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It failed", "It failed."),
        ("It failed.", "It failed."),
        ("  It\n  failed", "It."),
        ("It   failed \t twice", "It failed twice."),
        (f"{NODE} It failed [[{NODE}]] [Op:ReadFile]", "It failed."),
        ("Graph execution error:\n\nDetected at node x\nIt failed", "It failed."),
        ('<stack frame>\nFile "x.py", line 1\nIt failed', "It failed."),
        ('It failed\nAdditional GRPC error information:\n:{"x":1}', "It failed."),
        ("2 root error(s) found.\n  (0) INVALID_ARGUMENT: It failed", "It failed."),
        ("  (1) DATA_LOSS: It failed", "It failed."),
        (
            "Error in user-defined function passed to ParallelMapDatasetV2:3 "
            "transformation with iterator: Iterator::Root::Prefetch: It failed",
            "It failed.",
        ),
        (
            "Failed to get element from worker a:1: Failed to get an element, with a "
            "nonretryable error: It failed",
            "It failed.",
        ),
        ("Failed to get element from worker a:1: It failed", "It failed."),
        ("", "no message."),
        (f"[[{NODE}]]", "no message."),
    ],
    ids=[
        "a line",
        "a full stop",
        "two lines",
        "spaces",
        "nodes",
        "graph",
        "stack",
        "grpc",
        "several",
        "the second",
        "a function",
        "a server",
        "another server",
        "nothing",
        "no more than nodes",
    ],
)
def test_what_tensorflow_says_becomes_one_line(text, expected):
    assert errors.tidy(text) == expected


# Whose code it was.


def fail_in_dtrain_alone():
    try:
        config.RunConfig(seed=-1)
    except errors.UsageError as error:
        return error.with_traceback(error.__traceback__.tb_next)


def raise_from_here():
    try:
        raise_here()
    except ValueError as error:
        cause = error
    try:
        config.RunConfig(seed=-1)
    except errors.UsageError as error:
        error.__cause__ = cause
        return error.with_traceback(error.__traceback__.tb_next)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (caught(raise_here), True),
        (caught(fail_in_a_library), True),
        (raise_from_here(), True),
        (fail_in_dtrain_alone(), False),
        (ValueError("never raised"), False),
    ],
    ids=["raised here", "called from here", "its cause", "dtrain", "nowhere"],
)
def test_an_error_has_passed_the_user_s_code_or_not(error, expected):
    assert errors.passes_users_code(error) is expected
