"""Dense ENGD: the solve in parameter space."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from ..checks import check_flag
from ..errors import InputError
from ..least_squares.blocks import FLOAT
from ..least_squares.footprint import Demand, Footprint
from ..least_squares.linearization import Linearization
from ..models.theta import Theta
from .base import DampedSolver, Factorization, SolveInfo
from .damped import MATRICES, solve_damped


class Primal(DampedSolver[Float[Array, "p p"] | None]):
    """The solve in parameter space, x = (G + λI)⁻¹ Jᵀ b with the Gramian G, O(P³).

    G is an average over the steps, G ← average · G + (1 − average) · Jᵀ J. It is the solver of
    `engd`, for networks of a few thousand parameters.

    **Arguments:**

    - `average`: the weight of earlier batches, from 0 and below 1. Default: 0, so that G = Jᵀ J.
    - `start_at_identity`: whether the average starts from the identity, or else from zero. Default:
      True.

    **Raises:** `InputError` for an average that is not at least 0 and below 1.

        import natpinn

        solver = natpinn.Primal(average=0.9)
        optimizer = natpinn.NaturalGradient(solver, natpinn.Grid(), damping=1e-6)
    """

    average: float = eqx.field(static=True, default=0.0)
    start_at_identity: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        is_number = isinstance(self.average, int | float) and not isinstance(self.average, bool)
        if not (is_number and 0 <= self.average < 1):
            raise InputError(f"average must be at least 0 and below 1, got {self.average!r}")
        check_flag(self.start_at_identity, "start_at_identity")

    def init(self, theta: Theta) -> Float[Array, "p p"] | None:
        if self.average == 0:  # the first update forgets the start
            return None
        p = sum(leaf.size for leaf in jax.tree.leaves(theta))
        return jnp.eye(p) if self.start_at_identity else jnp.zeros((p, p))

    def factorize(
        self,
        linearization: Linearization,
        state: Float[Array, "p p"] | None,
        *,
        key: PRNGKeyArray,
    ) -> tuple["PrimalFactorization", Float[Array, "p p"] | None]:
        gramian = linearization.gramian()
        if state is None:
            return PrimalFactorization(linearization, gramian), None
        gramian = self.average * state + (1 - self.average) * gramian
        return PrimalFactorization(linearization, gramian), gramian

    def footprint(self, rows: int, parameters: int) -> Footprint:
        return Footprint(Demand.GRAMIAN, MATRICES * FLOAT * parameters**2)

    @property
    def remembers(self) -> bool:
        return self.average > 0


class PrimalFactorization(Factorization):
    linearization: Linearization
    matrix: Float[Array, "p p"]

    def solve(self, b: Float[Array, " n"], damping: Float[Array, ""]) -> tuple[Theta, SolveInfo]:
        gradient, unravel = ravel_pytree(self.linearization.vjp(b))
        x, info = solve_damped(self.matrix, gradient, damping)
        return unravel(x), info

    def trace(self) -> Float[Array, ""]:
        """Of the Gramian; without averages the kernel has the same."""
        return jnp.trace(self.matrix)
