"""Ctrl-C and SIGTERM: the first asks to stop after the step, the second stops at once."""

import signal
import sys
import threading
from types import FrameType
from typing import Any


class Interrupts:
    """While entered, `received` is the number of the signal that asked to stop, or 0.

    Only the main thread of Python gets signals; in another one nothing changes.
    """

    def __init__(self) -> None:
        self.received = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = number
        print("\nstopping after this step; Ctrl-C again stops at once", file=sys.stderr, flush=True)
