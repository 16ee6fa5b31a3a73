"""ENGD-W and SPRING with a sketch in place of the kernel."""

from collections.abc import Callable

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray

from ..errors import unknown
from ..models import Theta
from ..objective import Linearization
from .base import DampedSolver, Factorization, SolveInfo
from .sketch import (
    Approximation,
    Rank,
    check_rank,
    columns,
    gpu_efficient,
    sketch_bytes,
    stable,
)

VARIANTS: dict[str, Callable[..., Approximation]] = {"gpu": gpu_efficient, "standard": stable}


class Nystrom(DampedSolver[None]):
    """x = Jᵀ (nys(J Jᵀ) + λI)⁻¹ b, from products J(JᵀΩ) with k random vectors: O(NPk).

    Directions that the sketch has missed are damped by the largest eigenvalue that it has missed
    (see `sketch`). The rank is a number of vectors, or a share of the rows below 1.
    """

    rank: Rank = eqx.field(static=True, default=0.1)
    variant: str = eqx.field(static=True, default="gpu")

    def __check_init__(self):
        check_rank(self.rank)
        if self.variant not in VARIANTS:
            raise unknown("variant of Nystrom", str(self.variant), VARIANTS)

    def init(self, theta: Theta) -> None:
        return None

    def factorize(
        self, linearization: Linearization, state: None, *, key: PRNGKeyArray
    ) -> tuple["NystromFactorization", None]:
        n = len(linearization.residual)
        sketch = VARIANTS[self.variant](linearization.kernel_mm, n, columns(self.rank, n), key)
        return NystromFactorization(linearization, sketch), None

    def system_bytes(self, rows: int, parameters: int) -> int:
        return sketch_bytes(self.rank, rows, parameters)


class NystromFactorization(Factorization):
    linearization: Linearization
    sketch: Approximation

    def solve(self, b: Float[Array, " n"], damping: Float[Array, ""]) -> tuple[Theta, SolveInfo]:
        y, is_recovered = self.sketch.solve(b, damping)
        info = SolveInfo(damping, is_recovered, {"sketch_error": self.sketch.missed})
        return self.linearization.vjp(y), info

    def effective_dimension(self, damping: Float[Array, ""]) -> Float[Array, ""]:
        """Of the sketch: a lower bound of the kernel's."""
        return self.sketch.effective_dimension(damping)
