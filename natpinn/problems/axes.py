"""The axes of space, as directions in space-time."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import memory

COPIES = 3  # of the matrix, while it is made and used


def axes_of_space(dimension: int) -> Float[Array, "1+d d"]:
    """One column for each axis, without that of time, which is the first coordinate."""
    memory.require(
        COPIES * 8 * (1 + dimension) ** 2,
        f"the axes of {dimension:,} dimensions",
        "choose a smaller dimension",
    )
    return jnp.eye(1 + dimension)[:, 1:]
