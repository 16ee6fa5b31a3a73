"""When a run is evaluated, and when it is over."""

import math

from ..checks import at_least_one
from ..errors import InputError

EVALUATION_GROWTH = 1.05  # each evaluation comes 5 % more steps after the start than the last


def evaluation_after(step: int) -> int:
    """The first evaluation after a step: at steps that do not depend on where a run was stopped."""
    next_step = 1
    while next_step <= step:
        next_step = max(next_step + 1, math.ceil(next_step * EVALUATION_GROWTH))
    return next_step


def is_scheduled(step: int) -> bool:
    """Whether a run is evaluated at a step wherever it stops."""
    return step == 0 or evaluation_after(step - 1) == step


def check_limits(steps: int | None, budget: float | None, stop_at: float | None = None) -> None:
    """A run ends."""
    if steps is None and budget is None:
        raise InputError("say when to stop: give a number of steps, a budget in seconds, or both")
    if steps is not None:
        at_least_one("steps", steps)
    if budget is not None and not budget > 0:
        raise InputError(f"budget must be a positive number of seconds, got {budget}")
    if stop_at is not None and not stop_at > 0:
        raise InputError(f"stop_at must be a positive error, got {stop_at}")


def horizon(step: int, seconds: float, steps: int | None, budget: float | None) -> float:
    """How many steps a run will have: those it is given, or as many as its speed so far allows."""
    by_time = math.inf if budget is None or seconds == 0 else step * budget / seconds
    return min(math.inf if steps is None else steps, by_time)


def is_over(step: int, seconds: float, steps: int | None, budget: float | None) -> bool:
    """Whether a limit is reached."""
    return (steps is not None and step >= steps) or (budget is not None and seconds >= budget)
