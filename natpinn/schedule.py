"""Hyper-parameters: numbers, or functions of the step.

Numbers are kept as arrays: a Python float would be a constant of the compiled program, and every
new value would compile again.
"""

import math
from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from .checks import floats, shown, whole
from .errors import InputError
from .precision import real

Schedule = Float[Array, ""] | Callable[[Int[Array, ""]], ArrayLike]
Number = Schedule | float  # as it is given


def schedule(
    value: Number, name: str, *, minimum: float, below: float = math.inf, positive: bool = False
) -> Schedule:
    """`value` as a number in range, or an optax schedule that starts in it."""
    first = value
    if callable(value):
        first = value(jnp.array(0))  # the first of its values stands for the others
    elif isinstance(value, bool | str):
        raise InputError(f"{name} must be a number or a schedule, got {shown(value)}")
    number = floats(first, name)
    if number.ndim:
        raise InputError(f"{name} must be one number, got shape {number.shape}")
    if not (minimum <= float(number) < below) or (positive and float(number) == minimum):
        bounds = f"{'above' if positive else 'at least'} {minimum:g}"
        bounds += f" and below {below:g}" if below < math.inf else " and finite"
        raise InputError(f"{name} must be {bounds}, got {float(number):g}")
    return value if callable(value) else number


def at(value: Number, step: Int[Array, ""]) -> Float[Array, ""]:
    """The value that a schedule has at a step, counted from 0."""
    return jnp.asarray(value(step) if callable(value) else value, dtype=real())


def count(name: str, default: int) -> int:
    """The field of a whole number from 1, which is a constant of the compiled program."""
    return eqx.field(static=True, converter=partial(whole, name=name), default=default)


def damping(value: Number) -> Schedule:
    """λ > 0: the kernel of a batch with repeated points is singular."""
    return schedule(value, "damping", minimum=0.0, positive=True)


def momentum(value: Number) -> Schedule:
    """0 ≤ μ < 1: at 1 nothing would ever be forgotten."""
    return schedule(value, "momentum", minimum=0.0, below=1.0)


def average(value: Number) -> Schedule:
    """0 ≤ β < 1, the weight of what came before in an exponential average."""
    return schedule(value, "average", minimum=0.0, below=1.0)


def learning_rate(value: Number) -> Schedule:
    """η > 0; a schedule may begin at 0 and warm up."""
    return schedule(value, "learning_rate", minimum=0.0, positive=not callable(value))


def surprise(value: Number) -> Schedule:
    """The wanted relative linearization error of steps in the search phase of `auto`."""
    return schedule(value, "surprise", minimum=0.0, positive=True)


def forgetting(value: Number) -> Schedule:
    """c > 0 in the momentum 1 − c/(c' + age): the larger, the sooner directions are forgotten."""
    return schedule(value, "forgetting", minimum=0.0, positive=True)


def least_damping(value: Number) -> Schedule:
    """λ > 0, below which a damping does not fall."""
    return schedule(value, "least_damping", minimum=0.0, positive=True)


def calm(value: Number) -> Schedule:
    """The wanted relative linearization error of steps in the final phase of `auto`."""
    return schedule(value, "calm", minimum=0.0, positive=True)


def settle_from(value: Number) -> Schedule:
    """The share of a run after which the final phase of `auto` begins."""
    return schedule(value, "settle_from", minimum=0.0, below=1.0)


def horizon(value: Float[Array, ""] | float) -> Float[Array, ""]:
    """How many steps a run will have, infinity if that is not known."""
    return floats(value, "horizon")


def norm_cap(value: Number | None) -> Schedule | None:
    """C > 0, so that the longest step is √C; or None, and no step is too long."""
    return None if value is None else schedule(value, "norm_cap", minimum=0.0, positive=True)
