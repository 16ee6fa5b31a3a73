"""ENGD-W: the solve in sample space."""

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..least_squares.blocks import FLOAT
from ..least_squares.footprint import Demand, Footprint
from ..least_squares.linearization import Linearization
from ..models.theta import Theta
from .base import DampedSolver, Factorization, SolveInfo
from .damped import MATRICES, solve_damped


class Dual(DampedSolver[None]):
    """The solve in sample space, x = Jᵀ (J Jᵀ + λI)⁻¹ b: the push-through form, O(N²P).

    It is the solver of `engd_w` and `spring`, and exact.

        import natpinn

        optimizer = natpinn.NaturalGradient(natpinn.Dual(), natpinn.Grid(), damping=1e-6)
    """

    def init(self, theta: Theta) -> None:
        return None

    def factorize(
        self, linearization: Linearization, state: None, *, key: PRNGKeyArray
    ) -> tuple["DualFactorization", None]:
        return DualFactorization(linearization, linearization.kernel()), None

    def footprint(self, rows: int, parameters: int) -> Footprint:
        return Footprint(Demand.KERNEL, MATRICES * FLOAT * rows**2)


class DualFactorization(Factorization):
    linearization: Linearization
    matrix: Float[Array, "n n"]

    def solve(self, b: Float[Array, " n"], damping: Float[Array, ""]) -> tuple[Theta, SolveInfo]:
        y, info = solve_damped(self.matrix, b, damping)
        return self.linearization.vjp(y), info

    def trace(self) -> Float[Array, ""]:
        return jnp.trace(self.matrix)
