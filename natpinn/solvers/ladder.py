"""A sketch whose rank follows from training: a ladder of ranks with the exact solve on top.

Training starts at the lowest rank. It goes up a rung while the sketch misses too large a share of
the kernel's trace, and more than the damping covers. A sketch that misses next to nothing is as
good as the exact solve and cheaper. One that misses more leads to parameters where only tiny
eigenvalues could remove what is left of the residual, and exact steps from there would be very
long.

When the loss falls slowly, another rung is tried for one step: the next one, or from the exact
solve the one below, whose damping by what it misses may take a step much further. It is kept while
the loss falls by half or more in each step, from batch to batch; the more often that has failed,
the later the next trial. All rungs are in one program, so a change of rung compiles nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..least_squares.footprint import Footprint
from ..least_squares.linearization import Linearization
from ..models.theta import Theta
from .base import DampedSolver, Factorization, SolveInfo
from .damped import solve_damped
from .dual import Dual
from .nystrom import VARIANTS, check_variant
from .sketch import Approximation, columns, sketch_footprint, sketch_width

SHARES = (0.1, 0.2, 0.4)  # of the rows
DEAREST = 0.8  # of the cost of the exact solve: rungs above are left out
MOST_MISSED = 1e-8  # of the trace, in one direction: with more the rank goes up
SLOW = 0.2  # nats, powers of e, by which the loss falls in a step
STALLED = 4  # slow steps in a row
FAST = 0.7  # nats
FIRST_WAIT, LONGEST_WAIT = 10, 1000  # steps before another rung is tried


class Climb(NamedTuple):
    """The state of the ladder: the rung of the coming solve, and what is known of the last one."""

    home: Int[Array, ""]  # the rung outside of trials
    rung: Int[Array, ""]  # that of the coming solve: another one during a trial
    slow_steps: Int[Array, ""]  # in a row
    wait: Int[Array, ""]  # steps until another rung is tried
    patience: Int[Array, ""]  # the steps to wait after the next trial that fails
    missed_share: Float[Array, ""]  # σ / tr(Â)
    loss: Float[Array, ""]  # before the last step, on its batch


def start() -> Climb:
    none, wait = jnp.array(0), jnp.array(FIRST_WAIT)
    return Climb(none, none, none, wait, wait, jnp.array(0.0), jnp.array(jnp.inf))


class Ladder(eqx.Module):
    """Ranks that cost less than the exact solve, and their costs relative to it."""

    ranks: tuple[int, ...] = eqx.field(static=True)
    costs: tuple[float, ...] = eqx.field(static=True)

    @classmethod
    def of(cls, linearization: Linearization) -> "Ladder":
        n = len(linearization.residual)
        exact = linearization.kernel_operations() + n**3 / 3
        ranks, costs = [], []
        for share in SHARES:
            k = columns(share, n)
            width = sketch_width(k, n)
            cost = (linearization.product_operations(width) + 6 * n * width**2) / exact
            if cost < DEAREST and k not in ranks:
                ranks.append(k)
                costs.append(cost)
        return cls(tuple(ranks), tuple(costs))

    def move(self, state: Climb, loss: Float[Array, ""]) -> Climb:
        """The rung of the coming step, from the loss before it."""
        top = len(self.ranks)
        fall = jnp.log(state.loss / loss)  # of the logarithm of the loss, in the last step
        was_trial = state.rung != state.home
        is_poor = ~was_trial & (state.missed_share > MOST_MISSED) & (state.home < top)
        home = jnp.minimum(state.home + is_poor, top)

        slow_steps = jnp.where(fall < SLOW, state.slow_steps + 1, 0)
        begins = ~was_trial & ~is_poor & (slow_steps >= STALLED) & (state.wait <= 1) & (top > 0)
        other = jnp.where(home == top, top - 1, home + 1)
        goes_on = was_trial & (fall >= FAST)
        has_failed = was_trial & ~goes_on
        later = jnp.minimum(2 * state.patience, LONGEST_WAIT)
        patience = jnp.where(has_failed, later, state.patience)
        return Climb(
            home=home,
            rung=jnp.where(begins, other, jnp.where(goes_on, state.rung, home)),
            slow_steps=jnp.where(begins | was_trial | is_poor, 0, slow_steps),
            wait=jnp.where(was_trial, patience, state.wait - 1),
            patience=patience,
            missed_share=state.missed_share,
            loss=loss,
        )


class AdaptiveNystrom(DampedSolver[Climb]):
    """A solve with a sketch whose rank follows from training, up to the exact solve.

    The rank is 10, 20 or 40 % of the rows. It goes up while the sketch misses too large a share of
    the kernel's trace, and another one is tried where the loss falls slowly.

    **Arguments:** `variant`, as in `Nystrom`. Default: `"gpu"`.

    **Raises:** `InputError` for another variant.

        import natpinn

        optimizer = natpinn.engd_w(solver=natpinn.AdaptiveNystrom())
    """

    variant: str = eqx.field(static=True, default="gpu")

    def __check_init__(self):
        check_variant(self.variant)

    def init(self, theta: Theta) -> Climb:
        return start()

    def factorize(
        self, linearization: Linearization, state: Climb, *, key: PRNGKeyArray
    ) -> tuple["LadderFactorization", Climb]:
        ladder = Ladder.of(linearization)
        state = ladder.move(state, 0.5 * jnp.sum(linearization.residual**2))
        algorithm = VARIANTS[self.variant]
        return LadderFactorization(linearization, ladder, state, key, algorithm), state

    def update(self, state: Climb, info: SolveInfo) -> Climb:
        found, is_damped = info.details, info.details["missed"] <= info.damping
        return state._replace(missed_share=jnp.where(is_damped, 0.0, found["missed_share"]))

    def footprint(self, rows: int, parameters: int) -> Footprint:
        """Of its dearest rung."""
        exact = Dual().footprint(rows, parameters)
        sketch = sketch_footprint(max(SHARES), rows, parameters)
        return replace(exact, system_bytes=max(exact.system_bytes, sketch.system_bytes))

    @property
    def remembers(self) -> bool:
        return True


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

    def trace(self) -> Float[Array, ""]:
        return self.linearization.kernel_trace()

    def _rungs(
        self, b: Float[Array, " n"], damping: Float[Array, ""]
    ) -> Sequence[Callable[[], tuple[Array, SolveInfo]]]:
        product, n = self.linearization.kernel_mm, len(b)

        def sketched(rank: int) -> tuple[Array, SolveInfo]:
            return self.algorithm(product, n, rank, self.key).solve(b, damping)

        def exact() -> tuple[Array, SolveInfo]:
            y, info = solve_damped(self.linearization.kernel(), b, damping)
            nothing = jnp.zeros(())
            return y, info._replace(details={"missed": nothing, "missed_share": nothing})

        return [*(lambda k=k: sketched(k) for k in self.ladder.ranks), exact]
