"""ENGD-W and SPRING with a sketch in place of the kernel."""

from collections.abc import Callable

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray

from ..errors import unknown
from ..least_squares.footprint import Footprint
from ..least_squares.linearization import Linearization
from ..models.theta import Theta
from .base import DampedSolver, Factorization, SolveInfo
from .sketch import (
    Approximation,
    Rank,
    check_rank,
    columns,
    gpu_efficient,
    sketch_footprint,
    stable,
)

VARIANTS: dict[str, Callable[..., Approximation]] = {"gpu": gpu_efficient, "standard": stable}


class Nystrom(DampedSolver[None]):
    """A solve with a sketch of the kernel, x = Jᵀ (nys(J Jᵀ) + λI)⁻¹ b, in O(NPk).

    The sketch is a Nyström approximation from products J(JᵀΩ) with k random vectors Ω.

    Directions that the sketch has missed are damped by the largest eigenvalue that it has missed.

    **Arguments:**

    - `rank`: the number k of random vectors, or below 1 their share of the rows. More are more
      exact and take longer. Default: 0.1.
    - `variant`: `"gpu"`, with Cholesky factors only, or `"standard"`, with QR and SVD. Default:
      `"gpu"`.

    **Raises:** `InputError` for a rank that is neither a whole number nor a share, and for another
    variant.

        import natpinn

        optimizer = natpinn.spring(solver=natpinn.Nystrom(rank=50))
    """

    rank: Rank = eqx.field(static=True, default=0.1)
    variant: str = eqx.field(static=True, default="gpu")

    def __check_init__(self):
        check_rank(self.rank)
        check_variant(self.variant)

    def init(self, theta: Theta) -> None:
        return None

    def factorize(
        self, linearization: Linearization, state: None, *, key: PRNGKeyArray
    ) -> tuple["NystromFactorization", None]:
        n = len(linearization.residual)
        algorithm = VARIANTS[self.variant]
        sketch = algorithm(linearization.kernel_mm, n, columns(self.rank, n), key)
        return NystromFactorization(linearization, sketch), None

    def footprint(self, rows: int, parameters: int) -> Footprint:
        return sketch_footprint(self.rank, rows, parameters)


class NystromFactorization(Factorization):
    linearization: Linearization
    sketch: Approximation

    def solve(self, b: Float[Array, " n"], damping: Float[Array, ""]) -> tuple[Theta, SolveInfo]:
        y, info = self.sketch.solve(b, damping)
        return self.linearization.vjp(y), info

    def trace(self) -> Float[Array, ""]:
        """Of the sketch, which misses a part of the kernel's."""
        return self.sketch.trace


def check_variant(variant: str) -> None:
    if variant not in VARIANTS:
        raise unknown("variant of Nystrom", str(variant), VARIANTS)
