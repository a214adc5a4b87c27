"""What a task shows its chief, and what it hears from it.

`tf.distribute.Server` tells nobody whose it is, and the chief shares neither a disk nor
a port of its own with the other tasks. But a file operation that a server runs for
somebody runs inside that server's process, where `/proc/self/fd/N` is that very
process's descriptor N. So a task keeps two at fixed numbers: the writing end of a pipe,
where it waits for messages, and a file in memory that says who it is. No Python is
needed to answer, so a task that computes for long still answers, and one that is gone
or cut off does not (`contact.py` is the chief's end).
"""

import json
import os
import select
import socket
import uuid
from typing import Any

from dtrain import errors

# Below the usual limit of 1,024 descriptors, above what a process has open early.
_MESSAGES, _IDENTITY = 900, 901
MESSAGES_PATH = f"/proc/self/fd/{_MESSAGES}"
IDENTITY_PATH = f"/proc/self/fd/{_IDENTITY}"

# What a chief can say.
LEAVE, AGAIN, BEAT = "leave", "again", "beat"


class Mailbox:
    """The task's end. Make it before the TensorFlow server starts.

    Args:
        identity: what the chief is shown.

    Raises:
        TaskUnavailable: the limit of open files forbids it.
    """

    def __init__(self, **identity: Any):
        self._identity = {
            "boot": uuid.uuid4().hex,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            **identity,
        }
        self._rest = b""
        self._reader, writer = os.pipe()
        try:
            os.dup2(writer, _MESSAGES, inheritable=False)
            self.show()
        except OSError as error:
            raise errors.TaskUnavailable(
                f"A task needs the file descriptors {_MESSAGES} and {_IDENTITY}, which "
                "the limit of open files forbids here. Raise it: ulimit -n 1024."
            ) from error
        os.close(writer)

    def show(self, **changes: Any) -> None:
        """Shows something new; whoever reads meanwhile gets all of the old or the new.

        Args:
            changes: by name; the rest stays.
        """
        self._identity.update(changes)
        file = os.memfd_create("dtrain-identity")
        os.write(file, json.dumps(self._identity).encode())
        os.dup2(file, _IDENTITY, inheritable=False)
        os.close(file)

    def receive(self, seconds: float) -> list[dict[str, Any]]:
        """Returns the messages that have come; waits so long for the first."""
        ready, _, _ = select.select([self._reader], [], [], seconds)
        if not ready:
            return []
        *lines, self._rest = (self._rest + os.read(self._reader, 1 << 16)).split(b"\n")
        return [json.loads(line) for line in lines]
