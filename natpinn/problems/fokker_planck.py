"""The Fokker–Planck equation of an Ornstein–Uhlenbeck process, for q = log p."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..domains.box import Box
from ..domains.spacetime import TimeSpace
from ..equations.condition import Condition
from ..equations.operators import Field, weighted_value_gradient_laplacian
from .axes import axes_of_space
from .problem import Problem


def spreading_gaussian(dimension: int = 9) -> Problem:
    """q = log N(0, (2 − e⁻ᵗ)I) on [0, 1] × [−5, 5]ᵈ, from its initial values.

    ∂ₜq − d/2 − ½∇q·x − |∇q|² − Δq = 0: drift μ = −x/2, diffusion σ = √2.
    """
    slab = TimeSpace(0.0, 1.0, Box([-5.0] * dimension, [5.0] * dimension))
    space = axes_of_space(dimension)

    def solution(tx: Float[Array, " d"]) -> Float[Array, ""]:
        variance = 2 - jnp.exp(-tx[0])
        return -0.5 * (dimension * jnp.log(2 * jnp.pi * variance) + jnp.sum(tx[1:] ** 2) / variance)

    def drift(tx: Float[Array, " d"]) -> Float[Array, " d"]:
        return (0.5 * tx).at[0].set(-1.0)  # ½x·∇q − ∂ₜq

    def interior(q: Field, tx: Float[Array, " d"]) -> Float[Array, ""]:
        _, gradient, drifted_laplacian = weighted_value_gradient_laplacian(q, space, drift)(tx)
        return -drifted_laplacian - dimension / 2 - jnp.sum(gradient**2)

    def initial(q: Field, tx: Float[Array, " d"]) -> Float[Array, ""]:
        return q(tx) - solution(tx)

    conditions = {
        "interior": Condition(interior, slab),
        "initial": Condition(initial, slab.initial),
    }
    return Problem(conditions, solution)
