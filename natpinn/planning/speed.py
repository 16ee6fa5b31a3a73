"""How fast a device multiplies matrices, as busy as it is now."""

import time
from functools import cache

import jax
import jax.numpy as jnp

from ..precision import real

SIDES = {"cpu": 1024}  # of matrices: a product takes some milliseconds
SIDE = 4096  # on anything else
PRODUCTS = 10  # of which the fastest counts


def operations_per_second() -> float:
    """What the device reaches in products of matrices, on all of its cores."""
    return _measured(jax.default_backend(), jnp.dtype(real()).name)


@cache
def _measured(backend: str, precision: str) -> float:
    side = SIDES.get(backend, SIDE)
    matrix = jnp.ones((side, side), precision)
    product = jax.jit(lambda a: a @ a).lower(matrix).compile()
    times = []
    for _ in range(PRODUCTS):
        started = time.perf_counter()
        jax.block_until_ready(product(matrix))
        times.append(time.perf_counter() - started)
    return 2 * side**3 / min(times)
