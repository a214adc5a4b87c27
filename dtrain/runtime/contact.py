"""How a chief reaches the mailbox of another task (`mailbox.py`).

It runs two file operations in that task's process, over the port that is there anyway.
The connection is none of those that training uses, so it can be given a deadline and
used by a thread, while the main thread waits for TensorFlow.
"""

import json
import os
import socket
from typing import Any

import tensorflow as tf

from dtrain.cluster.spec import split_address
from dtrain.runtime import preflight
from dtrain.runtime.mailbox import IDENTITY_PATH, MESSAGES_PATH

_PROBE_SECONDS = 2.0
# How an HTTP/2 connection begins, on both sides: RFC 9113, section 3.4.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS = 4
_FRAME_HEAD = 9  # bytes


class Unreachable(Exception):
    """Why a task cannot be reached, as a phrase that follows "it"."""


class Contact:
    """The way to one task's mailbox.

    Args:
        address: of the task.
    """

    def __init__(self, address: str):
        self._address = address
        self._session: tf.compat.v1.Session | None = None
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._text = tf.compat.v1.placeholder(tf.string, [])
            self._say = tf.io.write_file(MESSAGES_PATH, self._text)
            with tf.control_dependencies([self._say]):
                self._say_and_read = tf.io.read_file(IDENTITY_PATH)
            self._read = tf.io.read_file(IDENTITY_PATH)

    def exchange(self, message: dict[str, Any] | None, seconds: float) -> dict:
        """Says something, and returns what the task shows.

        Args:
            message: a word of `mailbox` under "do", and what belongs to it; `None` to
                say nothing.
            seconds: to wait for an answer.

        Raises:
            Unreachable: there was none, or no good one.
        """
        text = "" if message is None else json.dumps(message) + "\n"
        fetch = self._read if message is None else self._say_and_read
        milliseconds = int(seconds * 1000)
        try:
            if self._session is None:
                self._session = self._open(milliseconds)
            answer = self._session.run(
                fetch,
                {self._text: text},
                options=tf.compat.v1.RunOptions(timeout_in_ms=milliseconds),
            )
            return json.loads(answer)
        except (tf.errors.OpError, ValueError) as error:
            self.close()
            raise Unreachable(_describe(error)) from error

    def _open(self, milliseconds: int) -> tf.compat.v1.Session:
        config = tf.compat.v1.ConfigProto(
            # With no other task's devices, the server asks no other task.
            device_filters=["/job:none"],
            isolate_session_state=True,
            operation_timeout_in_ms=milliseconds,
        )
        # Traffic of a cluster goes past any proxy (`environment.py`).
        target = f"grpc://{self._address}"
        return tf.compat.v1.Session(target, graph=self._graph, config=config)

    def close(self) -> None:
        """Ends the connection; the next exchange makes a new one."""
        session, self._session = self._session, None
        if session is not None:
            try:
                session.close()
            except tf.errors.OpError:
                return  # the server is gone, and the session with it


def probe(address: str) -> None:
    """Sees that a gRPC server listens somewhere.

    Raises:
        Unreachable: none does.
    """
    try:
        with socket.create_connection(split_address(address), _PROBE_SECONDS) as sock:
            if preflight.is_own(sock):
                raise Unreachable("does not listen there")
            sock.settimeout(_PROBE_SECONDS)
            sock.sendall(_PREFACE)
            head = b""
            while len(head) < _FRAME_HEAD:
                data = sock.recv(_FRAME_HEAD - len(head))
                if not data:
                    break
                head += data
            if len(head) < _FRAME_HEAD or head[3] != _SETTINGS:
                raise Unreachable("is no TensorFlow server, but another program")
    except socket.gaierror as error:
        raise Unreachable(
            f"has a host name that nobody knows ({error.strerror})"
        ) from None
    except ConnectionRefusedError:
        raise Unreachable("does not listen there") from None
    except TimeoutError:
        raise Unreachable(
            "does not answer: its machine is off, or a firewall is in between, or "
            "another program listens there"
        ) from None
    except OSError as error:
        text = error.strerror or os.strerror(error.errno or 0)
        raise Unreachable(f"cannot be reached ({text})") from None


def _describe(error: Exception) -> str:
    if isinstance(error, tf.errors.DeadlineExceededError):
        return "does not answer"
    if isinstance(error, tf.errors.UnimplementedError):
        return "is a gRPC server, but not TensorFlow's"
    if isinstance(error, tf.errors.NotFoundError | tf.errors.PermissionDeniedError):
        return "is a TensorFlow server, but not one of dtrain's"
    if isinstance(error, tf.errors.OpError):
        return f"does not answer ({error.message.splitlines()[0]})"
    return "shows something that is not dtrain's"
