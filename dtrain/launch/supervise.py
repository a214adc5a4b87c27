"""`--supervise`: a command that starts itself once more, as a process it watches."""

import os
import time
from collections.abc import Mapping

from dtrain import errors
from dtrain.cluster.spec import Task
from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.launch import model_dir
from dtrain.launch.child import Child
from dtrain.launch.life import Life
from dtrain.launch.signals import Signals
from dtrain.launch.supervised import Supervised

_POLL_SECONDS = 0.1


def run(
    config: RunConfig, task: Task | None, environ: Mapping[str, str], console: Console
) -> int:
    """Plays a role in a process that is started again when it is lost.

    Args:
        config: of this command.
        task: of a described cluster; `None` if there is only this process.
        environ: of this process.
        console: where restarts are told.

    Returns:
        The exit status of the last process.

    Raises:
        TaskUnavailable: it was killed more often than it may be started again.
        Interrupted: a second signal came, or one while there was no process.
    """
    task = task or Task("chief")
    config = config.replace(supervise=False)
    folder = os.path.abspath(config.model_dir or model_dir.FOR_SERVERS)
    log = model_dir.log_path(folder, task)

    def start(life: Life) -> Child:
        return Child(str(task), config, environ, life, log, keeps_terminal=True)

    with Signals() as signals:
        supervised = Supervised(
            str(task), start, Life.read({}).of("command"), config.max_restarts, console
        )
        try:
            while not supervised.has_ended:
                if signals.received and not supervised.is_stopping:
                    supervised.is_stopping = True
                    if supervised.is_pausing:
                        raise errors.Interrupted(signals.received[0])
                    supervised.child.process.send_signal(signals.received[0])
                supervised.look()
                time.sleep(_POLL_SECONDS)
        except KeyboardInterrupt:
            raise errors.Interrupted(signals.received[0]) from None
        finally:
            supervised.stop()
    status = supervised.child.status
    if status < 0 and not signals.received:
        raise errors.TaskUnavailable(supervised.child.describe_end())
    return 128 - status if status < 0 else status
