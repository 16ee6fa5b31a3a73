"""What the product of a layer's gradients costs from factors, and from gradients that are formed.

    python benchmarks/factors.py

For layers of several widths and rows of several streams the kernel Σ_st (g_ns·g_mt)(z_ns·z_mt) is
timed, and J Jᵀ of the same gradients, their forming included. From both follows what natpinn's
choice between them rests on: the operations of the matrix product in the time that one element of a
product of factors takes beyond its own operations, for its memory traffic.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

import natpinn  # noqa: F401  # sets JAX to float64

WIDTHS = (64, 128, 256, 512)
STREAMS = (1, 2, 4, 6, 11)


@jax.jit
def from_factors(g: Float[Array, "n s out"], z: Float[Array, "n s in"]) -> Float[Array, "n n"]:
    cotangents = jnp.einsum("nso,mto->sntm", g, g)
    return (cotangents * jnp.einsum("nsi,mti->sntm", z, z)).sum((0, 2))


@jax.jit
def from_gradients(g: Float[Array, "n s out"], z: Float[Array, "n s in"]) -> Float[Array, "n n"]:
    formed = jnp.einsum("nso,nsi->noi", g, z).reshape(len(g), -1)
    return formed @ formed.T


def seconds(function, *arguments: Array, repeats: int) -> float:
    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1000, help="of the Jacobian (default: 1000)")
    parser.add_argument("--repeats", type=int, default=5, help="the median is taken (default: 5)")
    options = parser.parse_args()
    n = options.rows
    print(jax.devices()[0].device_kind, f"{n} rows")
    print("width  streams  factors ms  gradients ms  operations per element")
    for width in WIDTHS:
        for streams in STREAMS:
            keys = jax.random.split(jax.random.key(0))
            g, z = (jax.random.normal(key, (n, streams, width)) for key in keys)
            fast = seconds(from_factors, g, z, repeats=options.repeats)
            slow = seconds(from_gradients, g, z, repeats=options.repeats)
            rate = 2 * n**2 * width**2 / slow  # operations a second, with forming in them
            extra = fast * rate / (n * streams) ** 2 - 4 * width
            print(f"{width:5}  {streams:7}  {1e3 * fast:10.2f}  {1e3 * slow:12.2f}  {extra:22.0f}")


if __name__ == "__main__":
    main()
