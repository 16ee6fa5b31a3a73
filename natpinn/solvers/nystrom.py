"""ENGD-W and SPRING with a sketch in place of the kernel."""

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..errors import unknown
from ..least_squares.linearization import Linearization
from ..models.theta import Theta
from . import ladder
from .base import DampedSolver, Factorization, SolveInfo
from .damped import MATRICES
from .ladder import Climb, Ladder, LadderFactorization
from .sketch import (
    Approximation,
    Rank,
    check_rank,
    columns,
    gpu_efficient,
    sketch_bytes,
    sketch_width,
    stable,
)

VARIANTS: dict[str, Callable[..., Approximation]] = {"gpu": gpu_efficient, "standard": stable}


class Nystrom(DampedSolver[Climb | None]):
    """x = Jᵀ (nys(J Jᵀ) + λI)⁻¹ b, from products J(JᵀΩ) with k random vectors: O(NPk).

    Directions that the sketch has missed are damped by the largest eigenvalue that it has missed
    (see `sketch`). The rank is a number of vectors, a share of the rows below 1, or "auto": then it
    goes up and down during training, up to the exact solve (see `ladder`).
    """

    rank: Rank | Literal["auto"] = eqx.field(static=True, default=0.1)
    variant: str = eqx.field(static=True, default="gpu")

    def __check_init__(self):
        if self.rank != "auto":
            check_rank(self.rank, ', or "auto"')
        if self.variant not in VARIANTS:
            raise unknown("variant of Nystrom", str(self.variant), VARIANTS)

    def init(self, theta: Theta) -> Climb | None:
        return ladder.start() if self.rank == "auto" else None

    def factorize(
        self, linearization: Linearization, state: Climb | None, *, key: PRNGKeyArray
    ) -> tuple["NystromFactorization | LadderFactorization", Climb | None]:
        algorithm, n = VARIANTS[self.variant], len(linearization.residual)
        if state is not None:
            rungs = Ladder.of(linearization)
            state = rungs.move(state, 0.5 * jnp.sum(linearization.residual**2))
            return LadderFactorization(linearization, rungs, state, key, algorithm), state
        assert self.rank != "auto"
        sketch = algorithm(linearization.kernel_mm, n, columns(self.rank, n), key)
        return NystromFactorization(linearization, sketch), None

    def update(self, state: Climb | None, info: SolveInfo) -> Climb | None:
        if state is None:
            return None
        found, is_damped = info.details, info.details["missed"] <= info.damping
        return state._replace(missed_share=jnp.where(is_damped, 0.0, found["missed_share"]))

    def system_bytes(self, rows: int, parameters: int) -> int:
        if self.rank == "auto":
            largest = sketch_bytes(max(ladder.SHARES), rows, parameters)
            return max(largest, MATRICES * 8 * rows**2)
        return sketch_bytes(self.rank, rows, parameters)

    def sketch_columns(self, rows: int) -> int | None:
        return None if self.rank == "auto" else sketch_width(columns(self.rank, rows), rows)


class NystromFactorization(Factorization):
    linearization: Linearization
    sketch: Approximation

    def solve(self, b: Float[Array, " n"], damping: Float[Array, ""]) -> tuple[Theta, SolveInfo]:
        y, info = self.sketch.solve(b, damping)
        return self.linearization.vjp(y), info

    def effective_dimension(self, damping: Float[Array, ""]) -> Float[Array, ""]:
        """Of the sketch: a lower bound of the kernel's."""
        return self.sketch.effective_dimension(damping)
