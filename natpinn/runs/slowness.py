"""A line for the user whose steps take far longer than they should."""

from ..parallel.threads import cores, idle_cores
from ..training.progress import Callback, Progress
from ..training.signals import say

SLOW = 3  # times as long as expected
SECONDS_TO_JUDGE = 2.0  # of training


def slowness(expected: float | None) -> Callback:
    """Says once where steps take far longer than expected."""
    is_open = expected is not None

    def compare(progress: Progress) -> None:
        nonlocal is_open
        if not is_open or expected is None or progress.seconds < SECONDS_TO_JUDGE:
            return
        is_open = False
        each = progress.seconds / progress.step
        if each >= SLOW * expected:
            say(
                f"steps take {1000 * each:.3g} ms, and about {1000 * expected:.3g} ms are expected "
                f"of this CPU: other processes keep {cores() - idle_cores():.1f} of {cores()} "
                f"cores busy at the moment"
            )

    return compare
