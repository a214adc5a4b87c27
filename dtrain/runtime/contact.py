"""How a chief reaches the mailbox of another task (`mailbox.py`).

It runs two file operations in that task's process, over the port that is there anyway.
The connection is none of those that training uses, so it can be given a deadline and
used by a thread, while the main thread waits for TensorFlow.
"""

import json
import re
from typing import Any

import grpc
import tensorflow as tf

from dtrain.runtime.mailbox import IDENTITY_PATH, MESSAGES_PATH
from dtrain.runtime.master_service import Master


class Unreachable(Exception):
    """Why a task cannot be reached, as a phrase that follows its name.

    Attributes:
        is_silent: nobody answers there at all, as if the machine were off.
    """

    def __init__(self, message: str, is_silent: bool = False):
        super().__init__(message)
        self.is_silent = is_silent


class Contact:
    """The way to one task's mailbox.

    Args:
        address: of the task.
    """

    def __init__(self, address: str):
        self._address = address
        self._master: Master | None = None
        self._graph = tf.Graph()
        with self._graph.as_default():
            text = tf.compat.v1.placeholder(tf.string, [])
            # A file of a fixed name would be read once, and then be a constant.
            path = tf.compat.v1.placeholder(tf.string, [])
            said = tf.io.write_file(MESSAGES_PATH, text)
            with tf.control_dependencies([said]):
                answer = _read(path)
            self._text, self._path = text.name, path.name
            self._answer, self._shown = answer.name, _read(path).name

    def exchange(self, message: dict[str, Any] | None, seconds: float) -> dict:
        """Says something, and returns what the task shows.

        Args:
            message: a word of `mailbox` under "do", and what belongs to it; `None` to
                say nothing.
            seconds: to wait for an answer.

        Raises:
            Unreachable: there was none, or no good one.
        """
        feed, fetch = {self._path: IDENTITY_PATH}, self._shown
        if message is not None:
            feed[self._text] = json.dumps(message) + "\n"
            fetch = self._answer
        try:
            if self._master is None:
                self._master = Master(self._address, self._graph, seconds)
            return json.loads(self._master.run(fetch, feed, seconds))
        except grpc.RpcError as error:
            self.close()
            raise Unreachable(_describe(error), _is_silent(error)) from error
        except ValueError as error:
            raise Unreachable("shows something that is not dtrain's") from error

    def close(self) -> None:
        """Ends the connection; the next exchange makes a new one.

        An old connection over a link that was down waits ever longer before it tries
        again, up to half a minute.
        """
        if self._master is not None:
            self._master.close()
            self._master = None


def _read(path: tf.Tensor) -> tf.Tensor:
    return tf.io.decode_raw(tf.io.read_file(path), tf.uint8)


def _is_silent(error: grpc.RpcError) -> bool:
    late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    return late or bool(re.search("[Nn]o route|timed out", error.details() or ""))


def _describe(error: grpc.RpcError) -> str:
    code, text = error.code(), error.details() or ""
    if "refused" in text:
        return "does not listen there"
    if "SETTINGS" in text or "http2" in text.lower():
        return "is no TensorFlow server, but another program"
    if re.search("DNS|resolution", text):
        return "has a host name that nobody knows"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return (
            "does not answer: its machine is off, or a firewall is in between, or "
            "another program listens there"
        )
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return "is a gRPC server, but not TensorFlow's"
    if code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED):
        return "is a TensorFlow server, but none of dtrain's"
    last = text.rsplit("last error: ", 1)[-1].splitlines() or ["no message"]
    return f"does not answer ({last[0]})"
