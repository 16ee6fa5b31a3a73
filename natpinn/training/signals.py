"""Ctrl-C and SIGTERM: the first asks to stop after the step, a later one stops at once."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import ClassVar

from ..errors import printable

STOPPED = 130  # the exit code that shells expect of a command that was stopped
TOGETHER = 0.5  # seconds in which signals are one: `timeout` sends two, one of them to the group

Handler = Callable[[int, FrameType | None], object] | int | None  # of a signal


class Interrupts:
    """Inside `with`, the first signal asks to stop, and a later one raises KeyboardInterrupt.

    `received` is the number of the first, 0 before it. Python raises only between instructions of
    its own, so compiled code delays the second; where `exits_at_once` is set, as for commands, a
    thread ends the process without that delay. Only the main thread receives signals: in another
    one nothing changes. A `with Interrupts()` inside another one gives the outer object.
    """

    exits_at_once: ClassVar[bool] = False
    _active: ClassVar["Interrupts | None"] = None

    def __init__(self) -> None:
        self.received = 0
        self._handled = _Signals()
        self._previous: dict[int, Handler] = {}
        self._pipe: tuple[int, int] | None = None

    def __enter__(self) -> "Interrupts":
        if Interrupts._active is not None:
            return Interrupts._active
        if threading.current_thread() is threading.main_thread():
            Interrupts._active = self
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._receive)
            if self.exits_at_once:
                self._watch()
        return self

    def __exit__(self, *_: object) -> None:
        if Interrupts._active is not self:
            return
        Interrupts._active = None
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._pipe is not None:
            signal.set_wakeup_fd(-1)
            os.close(self._pipe[1])  # ends the thread of `_watch`

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._handled.is_later():
            raise KeyboardInterrupt
        if not self.received:
            self.received = number
            say("\nstopping after this step; Ctrl-C again stops at once")

    def _watch(self) -> None:
        """Start a thread that gets signals through a pipe, also while compiled code runs."""
        self._pipe = reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

        def watch() -> None:
            seen = _Signals()
            while numbers := os.read(reader, 16):
                if any(n in self._previous for n in numbers) and seen.is_later():
                    say(
                        "stopped at once; `natpinn resume`, or the same command for a search or an "
                        "experiment, goes on from the last checkpoint"
                    )
                    os._exit(STOPPED)
            os.close(reader)

        threading.Thread(target=watch, daemon=True).start()


class _Signals:
    """When the first signal came, to tell a second one from the first delivered twice."""

    def __init__(self) -> None:
        self._first: float | None = None

    def is_later(self) -> bool:
        """Whether the signal that comes now is a second one."""
        now = time.monotonic()
        self._first = now if self._first is None else self._first
        return now - self._first > TOGETHER


def say(message: str) -> None:
    """A line on stderr, where that can still be written."""
    if sys.stderr is None:  # closed before Python began
        return
    with contextlib.suppress(OSError, ValueError):
        print(printable(message), file=sys.stderr, flush=True)
