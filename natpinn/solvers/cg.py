"""Conjugate gradients on the damped kernel: exact to a tolerance, and matrix-free."""

from collections.abc import Callable
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .. import schedule
from ..errors import InputError
from ..least_squares.blocks import FLOAT
from ..least_squares.footprint import Demand, Footprint
from ..least_squares.linearization import Linearization
from ..models.theta import Theta
from .base import DampedSolver, Factorization, SolveInfo
from .sketch import Rank, Spectral, check_rank, columns, sketch_footprint, stable

VECTORS = 8  # of the rows' length that the iteration has at once

Map = Callable[[Float[Array, " n"]], Float[Array, " n"]]


class ConjugateGradients(DampedSolver[None]):
    """The solve in sample space by conjugate gradients, from products J(Jᵀ y) alone.

    x = Jᵀ y with (J Jᵀ + λI) y = b to a relative residual. With a rank, a sketch of the kernel is
    the preconditioner (sketch and precondition), and the number of iterations depends on the part
    of the spectrum that the sketch has missed alone.

    **Arguments:**

    - `rank`: of the sketch, a number of random vectors or below 1 a share of the rows. Default:
      none, no preconditioner.
    - `tolerance`: of the residual, relative to b, at which iterations end. Default: 1e-10.
    - `most_iterations`: after which they end in any case. Default: 500.

    **Raises:** `InputError` for a tolerance that is not between 0 and 1, for a rank as in
    `Nystrom`, and for a number of iterations below 1.

        import natpinn

        optimizer = natpinn.spring(damping=1e-4, solver=natpinn.ConjugateGradients(rank=0.1))
    """

    rank: Rank | None = eqx.field(static=True, default=None)
    tolerance: float = eqx.field(static=True, default=1e-10)
    most_iterations: int = schedule.count("most_iterations", 500)

    def __check_init__(self):
        if not 0 < self.tolerance < 1:
            raise InputError(f"tolerance must be between 0 and 1, got {self.tolerance!r}")
        if self.rank is not None:
            check_rank(self.rank)

    def init(self, theta: Theta) -> None:
        return None

    def factorize(
        self, linearization: Linearization, state: None, *, key: PRNGKeyArray
    ) -> tuple["ConjugateGradientFactorization", None]:
        sketch = None
        if self.rank is not None:
            n = len(linearization.residual)
            sketch = stable(linearization.kernel_mm, n, columns(self.rank, n), key)
        return ConjugateGradientFactorization(
            linearization, sketch, self.tolerance, self.most_iterations
        ), None

    def footprint(self, rows: int, parameters: int) -> Footprint:
        vectors = FLOAT * (VECTORS * rows + 2 * parameters)
        if self.rank is None:
            return Footprint(Demand.PRODUCTS, vectors)
        sketch = sketch_footprint(self.rank, rows, parameters)
        return replace(sketch, system_bytes=sketch.system_bytes + vectors)


class ConjugateGradientFactorization(Factorization):
    linearization: Linearization
    sketch: Spectral | None
    tolerance: float = eqx.field(static=True)
    most_iterations: int = eqx.field(static=True)

    def solve(self, b: Float[Array, " n"], damping: Float[Array, ""]) -> tuple[Theta, SolveInfo]:
        def damped_kernel(y: Float[Array, " n"]) -> Float[Array, " n"]:
            return self.linearization.jvp(self.linearization.vjp(y)) + damping * y

        def precondition(r: Float[Array, " n"]) -> Float[Array, " n"]:
            return r if self.sketch is None else self.sketch.precondition(r, damping)

        y, iterations = conjugate_gradients(
            damped_kernel, b, precondition, self.tolerance, self.most_iterations
        )
        info = SolveInfo(damping, jnp.array(False), {"cg_iterations": iterations * 1.0})
        return self.linearization.vjp(y), info

    def trace(self) -> Float[Array, ""]:
        return self.linearization.kernel_trace()


def conjugate_gradients(
    product: Map, b: Float[Array, " n"], precondition: Map, tolerance: float, most: int
) -> tuple[Float[Array, " n"], Int[Array, ""]]:
    """y with |A y − b| ≤ tolerance |b|, and the number of iterations it took."""

    def is_open(carry: tuple[Array, ...]) -> Array:
        _, r, _, _, iterations = carry
        return (jnp.linalg.norm(r) > tolerance * jnp.linalg.norm(b)) & (iterations < most)

    def iterate(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        y, r, p, rz, iterations = carry
        q = product(p)
        step = rz / (p @ q)
        y, r = y + step * p, r - step * q
        z = precondition(r)
        new_rz = r @ z
        return y, r, z + new_rz / rz * p, new_rz, iterations + 1

    z = precondition(b)
    start = (jnp.zeros_like(b), b, z, b @ z, jnp.array(0))
    y, *_, iterations = jax.lax.while_loop(is_open, iterate, start)
    return y, iterations
