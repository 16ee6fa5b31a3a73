"""When a run is over, and how many steps it may take until then."""

import math
from dataclasses import dataclass

from ..checks import whole
from ..errors import InputError


@dataclass(frozen=True)
class Limits:
    """A number of steps, a budget in seconds of training, or both: the first reached ends a run."""

    steps: int | None = None
    budget: float | None = None

    def __post_init__(self) -> None:
        if self.steps is None and self.budget is None:
            raise InputError(
                "say when to stop: give a number of steps, a budget in seconds, or both"
            )
        if self.steps is not None:
            whole(self.steps, "steps")
        if self.budget is not None and not self.budget > 0:
            raise InputError(f"budget must be a positive number of seconds, got {self.budget}")

    def horizon(self, step: int, seconds: float) -> float:
        """The number of steps at the end of the run, if its speed stays what it has been so far."""
        by_time = math.inf
        if self.budget is not None and seconds != 0:
            by_time = step * self.budget / seconds
        return min(math.inf if self.steps is None else self.steps, by_time)

    def is_over(self, step: int, seconds: float) -> bool:
        """Whether a limit is reached."""
        return (self.steps is not None and step >= self.steps) or (
            self.budget is not None and seconds >= self.budget
        )

    def steps_per_call(
        self, step: int, seconds: float, seconds_per_step: float, *, until: int, within: float
    ) -> int:
        """How many steps to take in the next call, one at least.

        The call ends at step `until` (the next evaluation) or at a limit, and lasts no longer than
        `within` seconds.
        """
        last = until if self.steps is None else min(until, self.steps)
        time = within if self.budget is None else min(within, self.budget - seconds)
        return max(1, int(min(last - step, time / seconds_per_step)))
