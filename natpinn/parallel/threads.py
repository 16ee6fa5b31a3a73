"""How many threads LAPACK has on a CPU.

LAPACK's threads wait for each other without letting go of their cores. Beside a busy process the
Cholesky factor of a 500 × 500 kernel takes 250 ms with two threads, and 1 ms with one. XLA shares
its own work among all cores in a way that suffers little, and is left alone.
"""

import contextlib
import os
import time
from contextlib import AbstractContextManager
from pathlib import Path

from threadpoolctl import ThreadpoolController

from .plan import Plan

SIDE_PER_THREAD = 600  # rows of a matrix; below, one more thread saves little of a step
SAMPLE_SECONDS = 0.1  # in which the load of the machine is measured


def lapack_threads_for(side: int, backend: str) -> int:
    """How many threads a square matrix is worth on this machine, as busy as it is now."""
    wanted = min(side // SIDE_PER_THREAD, cores())
    if backend != "cpu" or wanted <= 1:
        return 1
    return max(1, min(wanted, round(idle_cores())))


def limit_lapack(plan: Plan) -> AbstractContextManager[object]:
    """Inside `with`, LAPACK has as many threads at most as the plan says."""
    if plan.backend != "cpu" or plan.lapack_threads is None:
        return contextlib.nullcontext()
    import scipy.linalg  # its LAPACK is what JAX calls  # noqa: F401

    return ThreadpoolController().limit(limits=plan.lapack_threads, user_api="blas")


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
