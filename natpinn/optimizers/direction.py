"""The direction of SPRING, and of natural gradients without momentum."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..least_squares.linearization import Linearization
from ..models.theta import Theta
from ..solvers.base import Factorization, SolveInfo


def direction(
    system: Factorization,
    linearization: Linearization,
    previous: Theta,
    momentum: Float[Array, ""],
    damping: Float[Array, ""],
) -> tuple[Theta, SolveInfo]:
    """φ = argmin |J φ − r|² + λ|φ − μ φ_previous|², before bias correction."""
    carried = jax.tree.map(lambda phi: momentum * phi, previous)
    shifted_residual = linearization.residual - linearization.jvp(carried)
    correction, info = system.solve(shifted_residual, damping)
    return jax.tree.map(jnp.add, carried, correction), info
