"""Signals that ask a run to stop, noted here and acted upon where it is safe."""

import signal
import threading
import types

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """While it is entered, a signal that asks to stop is noted, not obeyed.

    A second one raises `KeyboardInterrupt` where it arrives: no more waiting.

    A signal that the process was told to ignore (nohup) stays ignored. Outside the
    main thread, where Python allows no handlers, nothing is noted.

    Attributes:
        received: the numbers of the signals so far, in order.
        at_once: while true, the first one raises too: there is nothing to save.
    """

    def __init__(self, at_once: bool = False):
        self.received: list[int] = []
        self.at_once = at_once
        self._before: dict[int, object] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for signum in ASKING:
                if signal.getsignal(signum) is not signal.SIG_IGN:
                    self._before[signum] = signal.signal(signum, self._note)
            # An earlier life of this process may have kept some back (`life.py`).
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)
        return self

    def take_back(self) -> None:
        """Handles signals again, after somebody else has put a handler in the way.

        TensorFlow's coordination service takes SIGTERM for itself.
        """
        for signum in self._before:
            signal.signal(signum, self._note)

    def __exit__(self, *exc_info) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        self._before.clear()

    def _note(self, signum: int, frame: types.FrameType | None) -> None:
        self.received.append(signum)
        if self.at_once or len(self.received) > 1:
            raise KeyboardInterrupt
