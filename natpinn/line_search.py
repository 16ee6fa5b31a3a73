"""How far to go along a direction."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .errors import InputError
from .models import Theta
from .objective import LeastSquares
from .schedule import Schedule, at, learning_rate


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
    """The best of 2^smallest, …, 2^largest on the batch, all tried together; 0 if none helps."""

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
        sizes = 2.0 ** jnp.arange(self.smallest, self.largest + 1)
        losses = jax.vmap(lambda size: objective.loss(descend(theta, direction, size)))(sizes)
        losses = jnp.nan_to_num(losses, nan=jnp.inf)
        best = jnp.argmin(losses)
        return jnp.where(losses[best] < loss, sizes[best], 0.0)


def descend(theta: Theta, direction: Theta, size: Any) -> Theta:
    """θ − size · direction."""
    return jax.tree.map(lambda t, d: t - size * d, theta, direction)
