"""A line for the user whose steps take far longer than they should."""

from ..parallel.threads import cores, idle_cores
from ..training.progress import Callback, Progress
from ..training.signals import say

SLOW = 3  # times as long as expected
SECONDS_TO_JUDGE = 2.0  # of training
BUSY = 0.5  # cores that others use, from which on they are named as a reason


def slowness(expected: float | None) -> Callback:
    """Says once where steps take far longer than expected."""
    first: Progress | None = None
    is_open = expected is not None

    def compare(progress: Progress) -> None:
        nonlocal first, is_open
        if not is_open or expected is None:
            return
        first = first or progress  # an earlier process may have been faster or slower
        seconds, steps = progress.seconds - first.seconds, progress.step - first.step
        if seconds < SECONDS_TO_JUDGE or steps == 0:
            return
        is_open = False
        if seconds / steps >= SLOW * expected:
            say(
                f"steps take {1000 * seconds / steps:.3g} ms, and about {1000 * expected:.3g} ms "
                f"are expected of this CPU{_reason()}"
            )

    return compare


def _reason() -> str:
    busy = cores() - idle_cores()
    if busy < BUSY:
        return ""
    return (
        f"; other processes keep {busy:.1f} of {cores()} cores busy now: where some are free, give "
        f"this run cores of its own, as with taskset -c 0"
    )
