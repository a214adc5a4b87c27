"""TensorFlow's errors in words for the person who started the run."""

import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.strategies.failures import explain

LOST_PS = (
    "{{function_node __inference_f_12}} failed to connect to all addresses; "
    "last error: UNKNOWN: ipv4:127.0.0.1:4711: Connection refused\n"
    "Additional GRPC error information from remote target /job:ps/replica:0/task:1 "
    'while calling /tensorflow.eager.EagerService/RunComponentFunction:\n:{"created":1}'
)

IN_A_GRAPH = """Graph execution error:

Detected at node PyFunc defined at (most recent call last):
<stack traces unavailable>
ValueError: line 7 has no label
Traceback (most recent call last):

  File "data.py", line 12, in generate
    raise ValueError("line 7 has no label")

ValueError: line 7 has no label


\t [[{{node PyFunc}}]]
\t [[while/body/_1/while/IteratorGetNext]] [Op:__inference_packed_88]
"""


def make(kind, message):
    return kind(None, None, message)


@pytest.mark.parametrize(
    ("message", "who"),
    [
        (LOST_PS, "ps:1"),
        ("From /job:worker/replica:0/task:3:\nSocket closed", "worker:3"),
        ("Socket closed", "a task"),
    ],
    ids=["ps", "worker", "nobody"],
)
def test_a_lost_connection_names_the_task(message, who):
    error = explain(make(tf.errors.UnavailableError, message))
    assert type(error) is errors.TaskUnavailable
    assert f"connection to {who} is lost" in str(error)


def test_a_request_that_was_cut_off_is_a_lost_connection():
    message = (
        "{{function_node __wrapped__Identity}} Unable to parse request\n"
        "Additional GRPC error information from remote target "
        "/job:worker/replica:0/task:1/device:CPU:0 while calling /Run"
    )
    error = explain(make(tf.errors.InternalError, message))
    assert type(error) is errors.TaskUnavailable
    assert "connection to worker:1 is lost" in str(error)


def test_a_lost_connection_keeps_what_happened():
    message = str(explain(make(tf.errors.UnavailableError, LOST_PS)))
    assert "Connection refused" in message
    assert "GRPC" not in message
    assert "{" not in message


def test_data_that_ends_says_why_it_may():
    error = explain(make(tf.errors.OutOfRangeError, "End of sequence"))
    assert type(error) is errors.TrainingFailed
    assert "drop_remainder" in str(error)


def test_a_missing_file_says_where_it_is_looked_for():
    error = explain(make(tf.errors.NotFoundError, "a.csv; No such file or directory"))
    assert type(error) is errors.TrainingFailed
    assert "a.csv; No such file or directory." in str(error)
    assert "its own machine" in str(error)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (
            tf.errors.InvalidArgumentError,
            "{{function_node f}} Matrix size-incompatible: [8,4], [5,1]\n"
            "\t [[{{node dense/MatMul}}]] [Op:MatMul]",
            "InvalidArgumentError: Matrix size-incompatible: [8,4], [5,1].",
        ),
        (
            tf.errors.ResourceExhaustedError,
            "OOM when allocating tensor",
            "ResourceExhaustedError: OOM when allocating tensor.",
        ),
        (tf.errors.UnknownError, "It  broke.\n\n", "UnknownError: It broke."),
        (tf.errors.InternalError, "", "InternalError: no message."),
        (
            tf.errors.UnknownError,  # as of what a user's own Python raises
            "ValueError: Unable to parse request",
            "UnknownError: ValueError: Unable to parse request.",
        ),
    ],
)
def test_any_other_error_is_told_in_its_own_words(kind, text, expected):
    error = explain(make(kind, text))
    assert type(error) is errors.TrainingFailed
    assert str(error) == expected


def test_an_error_inside_of_a_graph_is_told_without_the_graph():
    message = str(explain(make(tf.errors.InvalidArgumentError, IN_A_GRAPH)))
    assert message == "InvalidArgumentError: ValueError: line 7 has no label."


def test_what_tensorflow_really_raises_is_explained():
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        tf.linalg.matmul(tf.zeros([8, 4]), tf.zeros([5, 1]))
    message = str(explain(caught.value))
    assert message.startswith("InvalidArgumentError: Matrix size-incompatible")
    assert "{{" not in message
