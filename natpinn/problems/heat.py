"""∂ₜu = κΔu on [0, 1] × [0, 1]ᵈ, from initial and boundary values."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..domains.box import Box
from ..domains.spacetime import TimeSpace
from ..equations.condition import Condition
from ..equations.operators import Field, weighted_laplacian
from .axes import axes_of_space
from .problem import Problem

DIFFUSIVITY = 0.25


def decaying_sines(dimension: int = 4) -> Problem:
    """u = e⁻ᵗ Σ sin(2xᵢ), with κ = ¼. The two conditions share one weight of 1."""
    slab = TimeSpace(0.0, 1.0, Box.unit(dimension))
    sigma = DIFFUSIVITY**0.5 * axes_of_space(dimension)
    backward_in_time = jnp.zeros(1 + dimension).at[0].set(-1.0)

    def solution(tx: Float[Array, " d"]) -> Float[Array, ""]:
        return jnp.exp(-tx[0]) * jnp.sum(jnp.sin(2 * tx[1:]))

    def interior(u: Field, tx: Float[Array, " d"]) -> Float[Array, ""]:
        return -weighted_laplacian(u, sigma, backward_in_time)(tx)  # ∂ₜu − κΔu in one pass

    def boundary(u: Field, tx: Float[Array, " d"]) -> Float[Array, ""]:
        return u(tx) - solution(tx)

    conditions = {
        "interior": Condition(interior, slab),
        "boundary": Condition(boundary, slab.boundary, weight=0.5),
        "initial": Condition(boundary, slab.initial, weight=0.5),
    }
    return Problem(conditions, solution)
