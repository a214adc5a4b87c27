"""Who is missing, before anything waits for them in silence."""

import socket
import time
from collections.abc import Callable

from dtrain import errors
from dtrain.cluster.spec import Cluster, Task, split_address
from dtrain.console import Console

_SECONDS_BETWEEN_LINES = 10.0


def wait_for_servers(
    cluster: Cluster,
    timeout: float,
    console: Console,
    check: Callable[[], None] | None = None,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Returns when every ps and worker accepts connections.

    Args:
        cluster: whose ps and worker tasks to look for.
        timeout: seconds to wait for all of them.
        console: every 10 s one line names who is missing.
        check: called while waiting; raises what should end the wait.
        now: the clock, in seconds.

    Raises:
        TaskUnavailable: some are still missing after `timeout`.
    """
    started = said = now()
    while True:
        answering = find_servers(cluster)
        missing = [t for t in cluster.servers() if t not in answering]
        if not missing:
            return
        if check is not None:
            check()
        names = ", ".join(f"{t} ({cluster.address(t)})" for t in missing)
        if now() - started >= timeout:
            raise errors.TaskUnavailable(
                f"No answer from {names} within --startup_timeout={timeout:g} s. Start "
                "these tasks with the same host lists; see that the addresses are "
                "right and that no firewall is in between."
            )
        if now() - said >= _SECONDS_BETWEEN_LINES:
            said = now()
            console.line(f"Waiting for {names}.")
        time.sleep(0.1)


def find_servers(cluster: Cluster) -> list[Task]:
    """Returns the ps and workers that accept connections now."""
    return [task for task in cluster.servers() if _accepts(cluster.address(task))]


def _accepts(address: str) -> bool:
    try:
        with socket.create_connection(split_address(address), timeout=1.0):
            return True
    except OSError:
        return False
