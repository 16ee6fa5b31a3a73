"""Which rank of a sketch is worth its cost: a ladder of ranks with the exact solve on top.

Training starts on the lowest rung. A rung is left for the next one when its sketch misses too large
a share of the kernel, or when the loss has fallen too slowly for some steps, from batch to batch
and for what they cost. A stalled sketch has left a residual that only tiny eigenvalues can remove,
for which steps with a small damping are hopelessly long: the exact solves that follow start with
what it missed as their damping. Whenever they stall it is lowered, or raised if the steps that a
line search allows are short.

Where exact steps have become slow, one with a sketch, damped by what it misses, may go much
further. So the rung below is tried for a step, and kept while the loss falls by half or more; the
more often that has failed, the later. All rungs are in one program: moving compiles nothing.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..models import Theta
from ..objective import Linearization
from .base import Factorization, SolveInfo, smooth_count
from .damped import solve_damped
from .sketch import Approximation

SHARES = (0.1, 0.2, 0.4)  # of the rows
DEAREST = 0.8  # of the cost of the exact solve: rungs above are left out
MOST_MISSED = 1e-8  # of the trace, in one direction: with more, sketched steps lead astray
SLOW_SKETCH = 0.5  # nats, powers of e, by which the loss falls per cost of an exact solve
SLOW_EXACT = 0.2  # nats per step
STALLED = 4  # slow steps in a row
FAST = 0.7  # nats: what a sketched step after exact ones must reach
SHORT = 0.1  # a step size: below it, more damping helps rather than less
LEAST_CARRIED = 1e-6  # of what the sketch missed: the damping is not lowered further
FIRST_WAIT, LONGEST_WAIT = 10, 1000  # steps before the rung below is tried


class Climb(NamedTuple):
    """Where on the ladder the coming solve stands, and what is known of the last one."""

    rung: Int[Array, ""]
    is_trial: Bool[Array, ""]  # whether it was entered from above
    slow_steps: Int[Array, ""]  # in a row
    wait: Int[Array, ""]  # steps until the rung below is tried
    patience: Int[Array, ""]  # how long that will be the next time
    missed: Float[Array, ""]  # σ of the last sketch
    missed_share: Float[Array, ""]  # σ / tr(Â)
    carried: Float[Array, ""]  # damping of exact solves, of a sketch that has stalled
    step_size: Float[Array, ""]  # of the last step
    loss: Float[Array, ""]  # before it, on its batch


def start() -> Climb:
    none, wait, zero = jnp.array(0), jnp.array(FIRST_WAIT), jnp.array(0.0)
    return Climb(
        none, jnp.array(False), none, wait, wait, zero, zero, zero, zero, jnp.array(jnp.inf)
    )


class Ladder(eqx.Module):
    """Ranks that cost less than the exact solve, and their costs relative to it."""

    ranks: tuple[int, ...] = eqx.field(static=True)
    costs: tuple[float, ...] = eqx.field(static=True)

    @classmethod
    def of(cls, linearization: Linearization) -> "Ladder":
        n = len(linearization.residual)
        exact = linearization.kernel_cost() + n**3 / 3
        ranks, costs = [], []
        for share in SHARES:
            k = max(1, round(share * n))
            cost = (linearization.product_cost(k) + 6 * n * k**2) / exact
            if cost < DEAREST and k not in ranks:
                ranks.append(k)
                costs.append(cost)
        return cls(tuple(ranks), tuple(costs))

    def move(self, state: Climb, loss: Float[Array, ""]) -> Climb:
        """The rung of the coming step, from the loss before it."""
        top = len(self.ranks)
        is_top = state.rung == top
        fall = jnp.log(state.loss / loss)  # of the logarithm of the loss, in the last step
        slowest = [*(SLOW_SKETCH * cost for cost in self.costs), SLOW_EXACT]
        is_slow = fall < jnp.array(slowest)[state.rung]
        slow_steps = jnp.where(is_slow, state.slow_steps + 1, 0)
        is_stalled = slow_steps >= STALLED
        is_poor = is_stalled | (state.missed_share > MOST_MISSED)
        climbs = ~is_top & jnp.where(state.is_trial, ~(fall >= FAST), is_poor)
        falls = is_top & is_stalled & (state.wait <= 1) & (top > 0)

        later = jnp.minimum(2 * state.patience, LONGEST_WAIT)
        patience = jnp.where(climbs & state.is_trial, later, state.patience)
        is_short = state.step_size < SHORT
        factor = jnp.where(is_stalled, jnp.where(is_short, 10.0, 0.1), 1.0)
        carried = jnp.maximum(factor * state.carried, LEAST_CARRIED * state.missed)
        carried = jnp.where(is_top, carried, 0.0)
        return Climb(
            rung=jnp.minimum(state.rung, top) + jnp.where(climbs, 1, jnp.where(falls, -1, 0)),
            is_trial=falls | (state.is_trial & ~climbs),
            slow_steps=jnp.where(climbs | (is_top & is_stalled), 0, slow_steps),
            wait=jnp.where(is_top & ~falls, state.wait - 1, patience),
            patience=patience,
            missed=state.missed,
            missed_share=state.missed_share,
            carried=jnp.where(climbs & (is_stalled | state.is_trial), state.missed, carried),
            step_size=state.step_size,
            loss=loss,
        )


class LadderFactorization(Factorization):
    """A solve on one rung: by a sketch of its rank, or exact on the top one."""

    linearization: Linearization
    ladder: Ladder
    state: Climb
    key: Array
    algorithm: Callable[..., Approximation] = eqx.field(static=True)

    def solve(self, b: Float[Array, " n"], damping: Float[Array, ""]) -> tuple[Theta, SolveInfo]:
        rung = self.state.rung
        y, info = jax.lax.switch(rung, self._rungs(b, damping))
        ranks = jnp.array([*self.ladder.ranks, len(b)], dtype=b.dtype)
        info = info._replace(details={"sketch_rank": ranks[rung], **info.details})
        return self.linearization.vjp(y), info

    def effective_dimension(self, damping: Float[Array, ""]) -> Float[Array, ""]:
        return smooth_count(jnp.linalg.eigvalsh(self.linearization.kernel()), damping)

    def _rungs(
        self, b: Float[Array, " n"], damping: Float[Array, ""]
    ) -> Sequence[Callable[[], tuple[Array, SolveInfo]]]:
        product, n = self.linearization.kernel_mm, len(b)

        def sketched(rank: int) -> tuple[Array, SolveInfo]:
            sketch = self.algorithm(product, n, rank, self.key)
            y, is_recovered = sketch.solve(b, damping)
            return y, SolveInfo(damping, is_recovered, sketch.details)

        def exact() -> tuple[Array, SolveInfo]:
            enough = jnp.maximum(damping, self.state.carried)
            y, info = solve_damped(self.linearization.kernel(), b, enough)
            details = {"missed": self.state.missed, "missed_share": jnp.zeros(())}
            return y, info._replace(details=details)

        return [*(lambda k=k: sketched(k) for k in self.ladder.ranks), exact]
