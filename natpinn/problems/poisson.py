"""−Δu = f on the unit cube, with the values of a known solution on its boundary."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..domains.box import Box
from ..equations.condition import Condition
from ..equations.operators import Field, laplacian
from ..errors import InputError
from .problem import Problem

# The published runs divide some solutions so that their L2 norm is one.
HARMONIC_SCALE = {10: 1.34, 100: 12.59}
SQUARE_NORM_SCALE = {100: 33.47}


def sine_product(dimension: int = 2) -> Problem:
    """u = Π sin(πxᵢ): small, for demonstrations."""

    def solution(x: Float[Array, " d"]) -> Float[Array, ""]:
        return jnp.prod(jnp.sin(jnp.pi * x))

    return _poisson(dimension, solution, lambda x: dimension * jnp.pi**2 * solution(x))


def cosine_sum(dimension: int = 5) -> Problem:
    """u = Σ cos(πxᵢ)."""

    def solution(x: Float[Array, " d"]) -> Float[Array, ""]:
        return jnp.sum(jnp.cos(jnp.pi * x))

    return _poisson(dimension, solution, lambda x: jnp.pi**2 * solution(x))


def harmonic(dimension: int = 10) -> Problem:
    """u = Σ x₂ᵢ₋₁x₂ᵢ / c: harmonic, so f = 0."""
    if dimension % 2:
        raise InputError(
            f"this solution pairs coordinates: dimension must be even, got {dimension}"
        )
    scale = HARMONIC_SCALE.get(dimension) or (dimension / 32 * (dimension / 2 + 7 / 9)) ** 0.5

    def solution(x: Float[Array, " d"]) -> Float[Array, ""]:
        return jnp.sum(x[::2] * x[1::2]) / scale

    return _poisson(dimension, solution, lambda x: jnp.zeros(()))


def square_norm(dimension: int = 100) -> Problem:
    """u = |x|² / c, so f = −2d / c."""
    scale = SQUARE_NORM_SCALE.get(dimension) or (dimension * (dimension / 9 + 4 / 45)) ** 0.5

    def solution(x: Float[Array, " d"]) -> Float[Array, ""]:
        return jnp.sum(x**2) / scale

    return _poisson(dimension, solution, lambda x: jnp.full((), -2 * dimension / scale))


def _poisson(dimension: int, solution: Field, forcing: Field) -> Problem:
    cube = Box.unit(dimension)

    def interior(u: Field, x: Float[Array, " d"]) -> Float[Array, ""]:
        return laplacian(u)(x) + forcing(x)

    def boundary(u: Field, x: Float[Array, " d"]) -> Float[Array, ""]:
        return u(x) - solution(x)

    conditions = {
        "interior": Condition(interior, cube),
        "boundary": Condition(boundary, cube.boundary),
    }
    return Problem(conditions, solution)
