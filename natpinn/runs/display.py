"""Progress for people: a live line on a terminal, plain lines elsewhere."""

import contextlib
import math
import sys
import time
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from ..training.progress import Progress as RunProgress

SECONDS_BETWEEN_LINES = 1.0


class Display:
    """A callback of `train` that shows step, loss, error, time of a step and the time left."""

    def __init__(self, stream: TextIO | None = None):
        self._stream = stream or sys.stderr
        self._console = Console(file=self._stream)
        self._last_line = -SECONDS_BETWEEN_LINES
        self._bar: Progress | None = None

    def __enter__(self) -> "Display":
        if self._console.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=20))
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("compiling …", total=1.0)
            self._bar.start()
        else:
            self._line("compiling …")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, progress: RunProgress) -> None:
        if self._bar is not None:
            completed = _fraction(progress)
            self._bar.update(self._task, description=describe(progress), completed=completed)
        elif progress.evaluated and self._is_due(progress):
            self._last_line = time.monotonic()
            self._line(describe(progress))

    def _is_due(self, progress: RunProgress) -> bool:
        waited = time.monotonic() - self._last_line
        return waited >= SECONDS_BETWEEN_LINES or _fraction(progress) >= 1

    def _line(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a full disk or a closed pipe
            print(text, file=self._stream, flush=True)


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
