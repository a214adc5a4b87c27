"""A gate before each worker: closed, it gets no further closure.

TensorFlow's coordinator hands closures to a worker for as long as it lives. A worker
that was asked to leave finishes the one it runs, and the next goes to another.
"""

import threading

import tensorflow as tf

from dtrain.runtime import executors


class Gates:
    """The gates of all workers, open at first.

    Args:
        coordinator: what hands out closures. Its worker's method for one closure has no
            public name; it has been the same from TensorFlow 2.4 to 2.21.
    """

    def __init__(self, coordinator: tf.distribute.coordinator.ClusterCoordinator):
        cluster = coordinator._cluster
        self._gates = [_Gate(worker, cluster) for worker in cluster.workers]

    def close(self, worker: int) -> bool:
        """Keeps closures from a worker; returns whether it runs none any more."""
        return self._gates[worker].close()

    def open(self, worker: int) -> None:
        """Lets closures through again."""
        self._gates[worker].open()


class _Gate:
    def __init__(self, worker, cluster):
        self._process = worker._process_closure
        self._queue = cluster.closure_queue
        self._lock = threading.Lock()
        self._is_busy = False
        self._opened = threading.Event()
        self._opened.set()
        worker._process_closure = self._pass

    def close(self) -> bool:
        with self._lock:
            self._opened.clear()
            return not self._is_busy

    def open(self) -> None:
        self._opened.set()

    def _pass(self, closure) -> None:
        executors.use_own()  # in this worker's thread
        with self._lock:
            self._is_busy = self._opened.is_set()
        if not self._is_busy:
            self._queue.put_back(closure)
            self._opened.wait()
            return
        try:
            self._process(closure)
        finally:
            with self._lock:
                self._is_busy = False
