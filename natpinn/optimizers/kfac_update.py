"""From K-FAC's preconditioned gradient Δ and its last update δ to the next parameters."""

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .. import schedule
from ..least_squares.objective import LeastSquares
from ..models.theta import Theta
from ..schedule import Schedule
from .base import dot
from .line_search import LineSearch, descend


class Here(NamedTuple):
    """A batch near the present parameters."""

    objective: LeastSquares
    theta: Theta
    residual: Float[Array, " n"]
    push: Callable[[Theta], Float[Array, " n"]]  # v ↦ J v
    damping: Float[Array, ""]
    step: Int[Array, ""]


class Update(NamedTuple):
    """Where a step leads, and what it remembers."""

    reached: Theta
    last: Theta  # δ of the next step
    size: Float[Array, ""]
    momentum: Float[Array, ""]


class UpdateRule(eqx.Module):
    """How far to go along Δ, and how much of δ to carry on."""

    @abstractmethod
    def update(self, here: Here, direction: Theta, last: Theta) -> Update:
        """The next parameters, from the preconditioned gradient Δ and the last update δ."""


class Quadratic(UpdateRule):
    """θ + αΔ + μδ with the α and μ that minimize the quadratic model of the loss on the batch.

    The model is ½|r + J(αΔ + μδ)|² + ½λ|αΔ + μδ|², with the preconditioned gradient Δ and the last
    update δ: K-FAC's automatic rate and momentum (KFAC*).

        import natpinn

        optimizer = natpinn.kfac(line_search=natpinn.Quadratic())
    """

    def update(self, here: Here, direction: Theta, last: Theta) -> Update:
        size, momentum = minimize_model(here.push, here.residual, direction, last, here.damping)
        change = jax.tree.map(lambda d, u: -size * d + momentum * u, direction, last)
        return Update(jax.tree.map(jnp.add, here.theta, change), change, size, momentum)


class Searched(UpdateRule):
    """θ + η(μδ − Δ), with the preconditioned gradient Δ, the last update δ and a line search's η.

    **Arguments:**

    - `line_search`: what chooses η, as `Grid()` or `Fixed(0.01)`.
    - `momentum`: μ, from 0 and below 1, a number or a schedule. Default: 0.

    **Raises:** `InputError` for a momentum out of its range.

        import natpinn

        optimizer = natpinn.Kfac(1e-8, natpinn.Searched(natpinn.Grid(), momentum=0.5))
    """

    line_search: LineSearch
    momentum: Schedule = eqx.field(converter=schedule.momentum, default=0.0)

    def update(self, here: Here, direction: Theta, last: Theta) -> Update:
        momentum = schedule.at(self.momentum, here.step)
        change = jax.tree.map(lambda d, u: momentum * u - d, direction, last)
        uphill = jax.tree.map(jnp.negative, change)
        loss = 0.5 * jnp.sum(here.residual**2)
        size = self.line_search.step_size(here.objective, here.theta, uphill, loss, here.step)
        return Update(descend(here.theta, uphill, size), change, size, momentum)


def minimize_model(
    push: Callable[[Theta], Float[Array, " n"]],
    residual: Float[Array, " n"],
    direction: Theta,
    last: Theta,
    damping: Float[Array, ""] | float,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """α and μ that minimize ½|r − αJd + μJu|² + ½λ|−αd + μu|²; μ = 0 where u is no help."""
    along, back = push(direction), push(last)
    bend = along @ along + damping * dot(direction, direction)
    back_bend = back @ back + damping * dot(last, last)
    mixed = -(along @ back) - damping * dot(direction, last)
    slope, back_slope = -(along @ residual), back @ residual
    determinant = bend * back_bend - mixed**2
    is_regular = determinant > jnp.finfo(residual.dtype).eps * bend * back_bend
    safe = jnp.where(is_regular, determinant, 1.0)
    both = (
        (mixed * back_slope - back_bend * slope) / safe,
        (mixed * slope - bend * back_slope) / safe,
    )
    alone = (-slope / jnp.where(bend > 0, bend, 1.0), jnp.zeros(()))
    return (
        jnp.where(is_regular, both[0], alone[0]),
        jnp.where(is_regular, both[1], alone[1]),
    )
