"""Worker 0's server, beside the chief that worker 0's command becomes.

In the TF1 layout, ps and worker hosts only, worker 0 is the chief. But a process
that serves cannot coordinate, so the command starts one more process for the
server, on the address that everybody knows, and coordinates from a free port.
"""

import threading
import time
from collections.abc import Mapping

from dtrain import errors
from dtrain.cluster import tf_config
from dtrain.cluster.spec import Cluster, split_address
from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.launch import child, ports
from dtrain.launch.life import Again, Life
from dtrain.launch.supervised import Supervised

_LEAVE_SECONDS = 3.0
_POLL_SECONDS = 0.1


class ServerBeside:
    """The process that serves worker 0, started again when it is lost.

    Attributes:
        cluster: the cluster with this process as its chief.

    Args:
        cluster: as described, without a chief.
        config: `model_dir` must be absolute.
        environ: of this process; the server's is made from it.
        console: where its restarts are told.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: RunConfig,
        environ: Mapping[str, str],
        console: Console,
    ):
        worker = cluster.chief
        host, _ = split_address(cluster.address(worker))
        host = f"[{host}]" if ":" in host else host
        chief = f"{host}:{ports.free(1)[0]}"
        self.cluster = Cluster({**cluster.to_dict(), "chief": [chief]})
        own = dict(environ, TF_CONFIG=tf_config.build(self.cluster, worker))
        self._address = self.cluster.address(worker)
        self._is_over = False
        self._server = Supervised(
            str(worker),
            lambda life: child.start_task(worker, config, own, life),
            Life.read({}).of("launcher"),
            config.max_restarts,
            console,
        )

    def wait_until_up(self) -> None:
        """Returns once this very process listens on worker 0's address.

        Somebody who merely answers there may be worker 0 of a live run, which a
        second chief must not touch.

        Raises:
            TaskUnavailable: the server ended instead.
        """
        _, port = split_address(self._address)
        first = self._server.child
        while not ports.listens(first.process.pid, port):
            if first.poll() is not None:
                raise errors.TaskUnavailable(first.describe_end())
            time.sleep(_POLL_SECONDS)
        threading.Thread(target=self._look_after, daemon=True).start()

    def check(self) -> None:
        """Raises `TaskUnavailable` if the server is gone for good."""
        if self._server.has_ended:
            raise errors.TaskUnavailable(self._server.child.describe_end())

    def __enter__(self) -> "ServerBeside":
        return self

    def __exit__(self, kind, error, trace) -> None:
        """Waits a moment for the server to leave, as it was told; then ends it."""
        self._is_over = True
        is_told = not isinstance(error, Again)
        self._server.stop(_LEAVE_SECONDS if is_told else 0.0)

    def _look_after(self) -> None:
        while not self._is_over:
            self._server.look()
            time.sleep(_POLL_SECONDS)
