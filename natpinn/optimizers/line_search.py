"""How far to go along a direction."""

from abc import abstractmethod
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..errors import InputError
from ..least_squares.objective import LeastSquares
from ..models.theta import Theta
from ..schedule import Number, Schedule, at, learning_rate

CANDIDATES = 2  # step sizes that are tried at once: often the largest is the best
Rule = TypeVar("Rule")


class LineSearch(eqx.Module):
    """The step size η of θ − η · direction: the contract of every line search.

    A subclass defines `step_size(objective, theta, direction, loss, step)`, which returns η as an
    array of shape (), with the loss before the step and the number of the step. It is compiled with
    the step.

        import jax
        import jax.numpy as jnp
        import natpinn

        class Two(natpinn.LineSearch):  # the better of a whole step and a tenth of one
            def step_size(self, objective, theta, direction, loss, step):
                def reached(size):
                    return objective.loss(jax.tree.map(lambda t, d: t - size * d, theta, direction))

                return jnp.where(reached(1.0) < reached(0.1), 1.0, 0.1)

        optimizer = natpinn.engd_w(line_search=Two())
    """

    @abstractmethod
    def step_size(
        self,
        objective: LeastSquares,
        theta: Theta,
        direction: Theta,
        loss: Float[Array, ""],
        step: Int[Array, ""],
    ) -> Float[Array, ""]:
        """η for a direction at θ, from the loss there and the number of the step."""


class Fixed(LineSearch):
    """A step size that is given.

    **Arguments:** `learning_rate`, η, a positive number or a function of the step such as an optax
    schedule.

    **Raises:** `InputError` for a number that is not positive.

        import optax

        import natpinn

        falling = natpinn.Fixed(optax.cosine_decay_schedule(0.1, 1000))
        optimizer = natpinn.engd_w(line_search=falling)
    """

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
    """The best step size of 2^smallest, …, 2^largest on the batch; 0 if none lowers the loss.

    Sizes are tried from the largest, a few at once. The search ends when the losses fall all the
    way from no step at all, through the smallest size tried, to the best one: smaller sizes then
    matter only where the loss has a second valley.

    **Arguments:**

    - `smallest`: the exponent of the smallest size. Default: -30.
    - `largest`: the exponent of the largest size. Default: 0, a whole step.

    **Raises:** `InputError` where the smallest exponent is above the largest.

        import natpinn

        optimizer = natpinn.engd_w(line_search=natpinn.Grid(-10, 2))
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


class Armijo(LineSearch):
    """The first of 1, 0.8, 0.8², … that gains a share of what the slope promises, or 0.

    **Arguments:**

    - `factor`: of one step size to the one before. Default: 0.8.
    - `share`: of the decrease that the slope promises, which has to be reached. Default: 0.01.
    - `trials`: how many sizes are tried; where none is good enough, no step is taken. Default: 20.

    **Raises:** `InputError` for a number out of its range.

        import natpinn

        optimizer = natpinn.engd_w(line_search=natpinn.Armijo(factor=0.5))
    """

    factor: float = eqx.field(static=True, default=0.8)
    share: float = eqx.field(static=True, default=0.01)
    trials: int = eqx.field(static=True, default=20)

    def __check_init__(self):
        if not (0 < self.factor < 1 and 0 <= self.share < 1 and self.trials >= 1):
            raise InputError(
                f"factor and share must be between 0 and 1 and trials at least 1, got "
                f"{self.factor}, {self.share} and {self.trials}"
            )

    def step_size(
        self,
        objective: LeastSquares,
        theta: Theta,
        direction: Theta,
        loss: Float[Array, ""],
        step: Int[Array, ""],
    ) -> Float[Array, ""]:
        _, slope = jax.jvp(objective.loss, (theta,), (direction,))  # of going up

        def is_open(carry: tuple[Array, Array, Array]) -> Array:
            trial, _, is_found = carry
            return ~is_found & (trial < self.trials)

        def try_one(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            trial, size, _ = carry
            size = jnp.where(trial == 0, 1.0, self.factor * size)
            reached = objective.loss(descend(theta, direction, size))
            gained = loss - reached
            return trial + 1, size, (gained > 0) & (gained >= self.share * size * slope)

        first = (jnp.array(0), jnp.array(1.0), jnp.array(False))
        _, size, is_found = jax.lax.while_loop(is_open, try_one, first)
        return jnp.where(is_found, size, 0.0)


def choose(rate: Number | None, line_search: Rule | None, default: Rule) -> Rule | Fixed:
    """A rate, a line search, or the default if neither is given."""
    if rate is None:
        return default if line_search is None else line_search
    if line_search is not None:
        raise InputError("give a learning_rate or a line_search, not both: each sets the step size")
    return Fixed(rate)


def _falls_to_best(
    losses: Float[Array, " k"], tried: Int[Array, ""], loss: Float[Array, ""]
) -> Bool[Array, ""]:
    """Whether the loss falls from no step at all, through the smallest size tried, to the best."""
    index = jnp.arange(len(losses))
    best, last = jnp.argmin(losses), tried - 1
    rises = jnp.diff(losses, prepend=-jnp.inf) > 0  # towards smaller sizes
    between = (index > best) & (index <= last)
    return (best < last) & (losses[last] < loss) & jnp.all(rises | ~between)


def descend(theta: Theta, direction: Theta, size: Float[Array, ""] | float) -> Theta:
    """θ − size · direction."""
    return jax.tree.map(lambda t, d: t - size * d, theta, direction)
