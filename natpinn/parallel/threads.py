"""How many threads LAPACK has on a CPU.

LAPACK's threads wait for each other without letting go of their cores. Beside a busy process the
Cholesky factor of a 500 × 500 kernel takes 250 ms with two threads, and 1 ms with one. XLA shares
its own work among all cores in a way that suffers little, and is left alone.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
from threadpoolctl import ThreadpoolController

from .processes import from_first

SIDE_PER_THREAD = 600  # rows of a matrix; below, one more thread saves little of a step
SAMPLE_SECONDS = 0.1  # in which the load of the machine is measured


def lapack_threads_for(side: int) -> int | None:
    """How many threads a square matrix is worth on this machine, as busy as it is now.

    The first of several processes decides. None where LAPACK has no part in steps.
    """
    if jax.default_backend() != "cpu":
        return None
    wanted = max(1, min(side // SIDE_PER_THREAD, cores()))
    threads = wanted if wanted == 1 else max(1, min(wanted, round(idle_cores())))
    return from_first({"threads": threads})["threads"]


@contextmanager
def limit_lapack(threads: int | None) -> Iterator[None]:
    """Inside `with`, LAPACK has so many threads at most, and no more than there are cores.

    The limit is one for the whole process: that of the first run holds until the last has ended.
    """
    if threads is None or jax.default_backend() != "cpu":
        yield
        return
    _process.enter(min(threads, cores()))
    try:
        yield
    finally:
        _process.leave()


class _Process:
    """The limit of this process, and how many runs are inside it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs = 0

    def enter(self, threads: int) -> None:
        import scipy.linalg  # its LAPACK is what JAX calls  # noqa: F401

        with self._lock:
            if self._runs == 0:
                self._limit = ThreadpoolController().limit(limits=threads, user_api="blas")
            self._runs += 1

    def leave(self) -> None:
        with self._lock:
            self._runs -= 1
            if self._runs == 0:
                self._limit.restore_original_limits()


_process = _Process()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def idle_cores() -> float:
    """How many cores no other process uses at the moment; all, where that cannot be known."""
    before, own = _ticks(), time.process_time()
    time.sleep(SAMPLE_SECONDS)
    after, own = _ticks(), time.process_time() - own
    if before is None or after is None or after[1] <= before[1]:
        return cores()
    idle, total = (new - old for new, old in zip(after, before, strict=True))
    return min(cores(), (os.cpu_count() or 1) * idle / total + own / SAMPLE_SECONDS)


def _ticks() -> tuple[int, int] | None:
    """Of all cores since the machine was started: those idle, and all."""
    try:
        first, *_ = Path("/proc/stat").read_text().splitlines()
        user, nice, system, idle, waiting, *rest = map(int, first.split()[1:9])
    except (OSError, ValueError):
        return None
    return idle + waiting, user + nice + system + idle + waiting + sum(rest)
