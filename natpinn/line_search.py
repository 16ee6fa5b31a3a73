"""How far to go along a direction."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .errors import InputError
from .models import Theta
from .objective import LeastSquares
from .schedule import Schedule, at, learning_rate

CANDIDATES = 2  # step sizes that are tried at once: often the largest is the best


class LineSearch(eqx.Module):
    """The step size η of θ − η · direction."""

    @abstractmethod
    def step_size(
        self,
        objective: LeastSquares,
        theta: Theta,
        direction: Theta,
        loss: Float[Array, ""],
        step: Int[Array, ""],
    ) -> Float[Array, ""]: ...


class Fixed(LineSearch):
    """η from a number or a schedule."""

    learning_rate: Schedule = eqx.field(converter=learning_rate)

    def step_size(
        self,
        objective: LeastSquares,
        theta: Theta,
        direction: Theta,
        loss: Float[Array, ""],
        step: Int[Array, ""],
    ) -> Float[Array, ""]:
        return at(self.learning_rate, step)


class Grid(LineSearch):
    """The best of 2^smallest, …, 2^largest on the batch; 0 if none helps.

    Sizes are tried from the largest, some at once, until the rest cannot matter: from zero up to
    the best size found, the losses that were tried fall all the way.
    """

    smallest: int = eqx.field(static=True, default=-30)
    largest: int = eqx.field(static=True, default=0)

    def __check_init__(self):
        if self.smallest > self.largest:
            raise InputError(
                f"a grid runs from its smallest exponent to its largest, got {self.smallest} and "
                f"{self.largest}"
            )

    def step_size(
        self,
        objective: LeastSquares,
        theta: Theta,
        direction: Theta,
        loss: Float[Array, ""],
        step: Int[Array, ""],
    ) -> Float[Array, ""]:
        sizes = 2.0 ** jnp.arange(self.largest, self.smallest - 1, -1)
        at_once = min(objective.plan.candidates_at_once or CANDIDATES, len(sizes))

        def try_some(carry: tuple[Array, Array]) -> tuple[Array, Array]:
            tried, losses = carry
            start = jnp.minimum(tried, len(sizes) - at_once)
            some = jax.lax.dynamic_slice_in_dim(sizes, start, at_once)
            found = jax.vmap(lambda size: objective.loss(descend(theta, direction, size)))(some)
            found = jnp.nan_to_num(found, nan=jnp.inf)
            return start + at_once, jax.lax.dynamic_update_slice_in_dim(losses, found, start, 0)

        def is_open(carry: tuple[Array, Array]) -> Array:
            tried, losses = carry
            return (tried < len(sizes)) & ~_falls_to_best(losses, tried, loss)

        untried = (jnp.array(0), jnp.full(len(sizes), jnp.inf))
        _, losses = jax.lax.while_loop(is_open, try_some, untried)
        best = jnp.argmin(losses)
        return jnp.where(losses[best] < loss, sizes[best], 0.0)


def _falls_to_best(
    losses: Float[Array, " k"], tried: Int[Array, ""], loss: Float[Array, ""]
) -> Bool[Array, ""]:
    """Whether the loss falls from no step at all, through the smallest size tried, to the best."""
    index = jnp.arange(len(losses))
    best, last = jnp.argmin(losses), tried - 1
    rises = jnp.diff(losses, prepend=-jnp.inf) > 0  # towards smaller sizes
    between = (index > best) & (index <= last)
    return (best < last) & (losses[last] < loss) & jnp.all(rises | ~between)


def descend(theta: Theta, direction: Theta, size: Any) -> Theta:
    """θ − size · direction."""
    return jax.tree.map(lambda t, d: t - size * d, theta, direction)
