"""Solving (A + λI) x = b for a positive semidefinite A, whatever round-off has made of it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .base import SolveInfo

RAISES = 4  # of the damping, each tenfold, before the last resort
WORST_RESIDUAL = 0.5  # relative: beyond it, x says nothing about b
Trial = tuple[Array, Array, Array, Array]  # raises so far, damping, solution, whether it is one
MATRICES = 5  # A, A + λI, its factor; or A, its eigenvectors and their workspace
Solve = Callable[[Array, Array, Array], Array]  # A, b, λ ↦ x


def by_eigenvalues(
    matrix: Float[Array, "m m"], b: Float[Array, " m"], damping: Float[Array, ""]
) -> Float[Array, " m"]:
    """(A₊ + λI)⁻¹ b, where A₊ has the negative eigenvalues of A at zero."""
    values, vectors = jnp.linalg.eigh(matrix, symmetrize_input=False)
    return vectors @ ((vectors.T @ b) / (values.clip(0) + damping))


def give_up(
    matrix: Float[Array, "m m"], b: Float[Array, " m"], damping: Float[Array, ""]
) -> Float[Array, " m"]:
    """NaN, in no memory: the step will be rejected."""
    return jnp.full_like(b, jnp.nan)


def solve_damped(
    matrix: Float[Array, "m m"],
    b: Float[Array, " m"],
    damping: Float[Array, ""],
    last_resort: Solve = by_eigenvalues,
) -> tuple[Float[Array, " m"], SolveInfo]:
    """x = (A + λI)⁻¹ b by Cholesky; where that fails, with more damping; then the last resort.

    A factorization fails, or its solution has a residual like b itself, if λ is lost in the
    round-off of A. So the first larger damping is of the size of that round-off. Where A or b is
    not finite there is nothing to try, and x is NaN.
    """
    damping = jnp.asarray(damping, matrix.dtype)
    round_off = jnp.finfo(matrix.dtype).eps * jnp.trace(matrix)
    is_hopeless = ~jnp.isfinite(round_off + jnp.sum(b))

    def attempt(damping: Float[Array, ""]) -> tuple[Array, Array]:
        damped = matrix + damping * jnp.eye(len(matrix), dtype=matrix.dtype)
        factor = jax.lax.linalg.cholesky(damped, symmetrize_input=False)  # in place
        x = jax.scipy.linalg.cho_solve((factor, True), b)
        error = jnp.linalg.norm(matrix @ x + damping * x - b)
        return x, error <= WORST_RESIDUAL * jnp.linalg.norm(b)

    def raise_damping(
        carry: tuple[Array, Array, Array, Array],
    ) -> tuple[Array, Array, Array, Array]:
        raises, last, _, _ = carry
        raised = jnp.maximum(10 * last, round_off)
        return raises + 1, raised, *attempt(raised)

    def is_open(carry: Trial) -> Array:
        raises, _, _, is_solved = carry
        return ~is_solved & (raises < RAISES)

    def recover() -> tuple[Array, Array]:
        failed = (jnp.array(0), damping, jnp.full_like(b, jnp.nan), is_hopeless)
        _, used, x, is_solved = jax.lax.while_loop(is_open, raise_damping, failed)
        return jax.lax.cond(is_solved, lambda: x, lambda: last_resort(matrix, b, used)), used

    x, is_solved = attempt(damping)
    x, used = jax.lax.cond(is_solved, lambda: (x, damping), recover)
    return x, SolveInfo(used, ~is_solved)
