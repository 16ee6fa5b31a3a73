"""Progress for people: a live line on a terminal, plain lines elsewhere."""

import contextlib
import io
import math
import sys
import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task
from rich.table import Column
from rich.text import Text

from ..training.progress import Progress as RunProgress
from .start_clock import StartClock

SECONDS_BETWEEN_LINES = 1.0


class Display:
    """Shows what a run does: before the first step, and as a callback of `train`.

    Until then it says for how long functions have been traced or programs compiled; from then on
    step, loss, error, time of a step and the time left.
    """

    def __init__(self, stream: TextIO | None = None):
        self._stream = stream or sys.stderr or io.StringIO()  # stderr may be closed
        self._console = Console(file=self._stream)
        self._last_line = -SECONDS_BETWEEN_LINES
        self._bar: Progress | None = None
        self._clock = StartClock()
        self._latest: RunProgress | None = None

    def __enter__(self) -> "Display":
        if self._console.is_terminal:
            columns = (SpinnerColumn(), _Line(self._describe), BarColumn(bar_width=20))
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("", total=1.0)
            self._bar.start()
        else:
            self._line("tracing and compiling …")
        self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._clock.stop()
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, progress: RunProgress) -> None:
        if self._latest is None:
            self._clock.stop()
            self._line(f"ready to train after {self._clock}")
        self._latest = progress
        if self._bar is not None:
            self._bar.update(self._task, completed=_fraction(progress))
        elif progress.evaluated and self._is_due(progress):
            self._last_line = time.monotonic()
            self._line(describe(progress))

    def _describe(self) -> str:
        if self._latest is None:
            return f"{self._clock.doing} … {self._clock.seconds:.0f} s"
        return describe(self._latest)

    def _is_due(self, progress: RunProgress) -> bool:
        waited = time.monotonic() - self._last_line
        return waited >= SECONDS_BETWEEN_LINES or _fraction(progress) >= 1

    def _line(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a full disk or a closed pipe
            print(text, file=self._stream if self._bar is None else sys.stderr, flush=True)


class _Line(ProgressColumn):
    """A text that is asked for whenever the screen is drawn."""

    def __init__(self, text: Callable[[], str]):
        super().__init__(Column(no_wrap=True))
        self._text = text

    def render(self, task: Task) -> Text:
        return Text(self._text())


def describe(progress: RunProgress) -> str:
    """One line: where a run stands."""
    parts = [f"step {progress.step:,}", f"loss {progress.metrics['loss']:.2e}"]
    names = {"relative_l2": "relative L2 error", "validation_loss": "validation loss"}
    parts += [f"{names[k]} {v:.2e}" for k, v in progress.metrics.items() if k in names]
    if progress.metrics.get("rejected_steps"):
        parts.append(f"{progress.metrics['rejected_steps']:,} rejected")
    if progress.step:
        per_step = progress.seconds / progress.step
        is_long = per_step >= 1
        parts.append(f"{per_step:.3g} s/step" if is_long else f"{1000 * per_step:.3g} ms/step")
        if math.isfinite(left := _seconds_left(progress)):  # not with a budget of inf
            parts.append(f"{show_duration(left)} left")
    return "  ".join(parts)


def show_duration(seconds: float) -> str:
    """As people say it: 38 s, 12 min, 3 h 20 min."""
    minutes = round(seconds / 60)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _fraction(progress: RunProgress) -> float:
    """How much of the run is done, by the limit that comes first."""
    parts = [progress.step / progress.steps] if progress.steps else []
    parts += [progress.seconds / progress.budget] if progress.budget else []
    return min(1.0, max(parts))


def _seconds_left(progress: RunProgress) -> float:
    per_step = progress.seconds / progress.step
    limits = [(progress.steps - progress.step) * per_step] if progress.steps else []
    limits += [progress.budget - progress.seconds] if progress.budget else []
    return max(0.0, min(limits))
