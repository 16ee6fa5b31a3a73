"""Which rank of a sketch is worth its cost: a ladder of ranks with the exact solve on top.

A sketch of rank k removes a share of the residual, in the linear model, at a share of the cost of
the exact solve. As long as it removes more per operation than the exact solve could at best, it is
used; if not, the next rung is. From time to time the rung below is tried again, and the more often
that has failed, the later. All rungs are in one program, so going up and down compiles nothing.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..models import Theta
from ..objective import Linearization
from .base import Factorization, SolveInfo, smooth_count
from .damped import solve_damped
from .sketch import Approximation

SHARES = (0.05, 0.1, 0.2, 0.4)  # of the rows
DEAREST = 0.8  # of the cost of the exact solve: rungs above are left out
FIRST_WAIT, LONGEST_WAIT = 10, 1000  # steps before the rung below is tried again


class Rung(NamedTuple):
    """Where on the ladder the coming solve stands."""

    rung: Int[Array, ""]
    wait: Int[Array, ""]  # steps until the rung below is tried
    patience: Int[Array, ""]  # how long that will be the next time


def start() -> Rung:
    return Rung(jnp.array(0), jnp.array(FIRST_WAIT), jnp.array(FIRST_WAIT))


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

    def move(self, state: Rung, removed: Float[Array, ""]) -> Rung:
        """The next rung, from the share of the residual that this one has removed."""
        top = len(self.ranks)
        costs = jnp.array([*self.costs, 1.0])
        pays = removed >= costs[state.rung]
        is_top = state.rung == top
        wait = jnp.maximum(state.wait - 1, 0)
        tries = (wait == 0) & (state.rung > 0) & (pays | is_top)
        climbs = ~pays & ~is_top
        step = jnp.where(climbs, 1, jnp.where(tries, -1, 0))
        patience = jnp.where(climbs, jnp.minimum(2 * state.patience, LONGEST_WAIT), state.patience)
        wait = jnp.where(climbs | tries, patience, wait)
        return Rung(jnp.clip(state.rung + step, 0, top), wait, patience)


class LadderFactorization(Factorization):
    """A solve on one rung: by a sketch of its rank, or exact on the top one."""

    linearization: Linearization
    ladder: Ladder
    rung: Int[Array, ""]
    key: Array
    algorithm: Callable[..., Approximation] = eqx.field(static=True)

    def solve(self, b: Float[Array, " n"], damping: Float[Array, ""]) -> tuple[Theta, SolveInfo]:
        rung = jnp.minimum(self.rung, len(self.ladder.ranks))
        y, is_recovered, missed = jax.lax.switch(rung, self._rungs(b, damping))
        x = self.linearization.vjp(y)
        left = b - self.linearization.jvp(x)
        removed = 1 - jnp.sum(left**2) / jnp.sum(b**2)
        ranks = jnp.array([*self.ladder.ranks, len(b)], dtype=b.dtype)
        details = {"sketch_rank": ranks[rung], "sketch_error": missed, "removed": removed}
        return x, SolveInfo(damping, is_recovered, details)

    def effective_dimension(self, damping: Float[Array, ""]) -> Float[Array, ""]:
        return smooth_count(jnp.linalg.eigvalsh(self.linearization.kernel()), damping)

    def _rungs(
        self, b: Float[Array, " n"], damping: Float[Array, ""]
    ) -> Sequence[Callable[[], tuple[Array, Array, Array]]]:
        product, n = self.linearization.kernel_mm, len(b)

        def sketched(rank: int) -> tuple[Array, Array, Array]:
            sketch = self.algorithm(product, n, rank, self.key)
            return *sketch.solve(b, damping), sketch.missed

        def exact() -> tuple[Array, Array, Array]:
            y, info = solve_damped(self.linearization.kernel(), b, damping)
            return y, info.is_recovered, jnp.zeros(())

        return [*(lambda k=k: sketched(k) for k in self.ladder.ranks), exact]
