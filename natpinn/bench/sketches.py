"""Both Nyström algorithms against each other."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..solvers.nystrom import VARIANTS
from ..solvers.sketch import Approximation, columns
from .step import (
    gemm,
)

REGULARIZER = 1e-7  # of the paper's comparison of Nyström algorithms


def compare_algorithms(
    n: int,
    shares: Sequence[float],
    runs: int = 100,
    warm_ups: int = 10,
    longest: float = math.inf,
) -> dict[str, Any]:
    """Both Nyström algorithms on an n × n kernel: seconds of a sketch and a solve, memory, error.

    The kernel has eigenvalues that fall evenly over twelve orders of magnitude. With `longest`, a
    measurement ends after so many seconds, with fewer runs.
    """
    factor = jax.random.normal(jax.random.key(0), (n, n)) / jnp.sqrt(n)
    factor = factor * 10.0 ** jnp.linspace(0, -6, n)
    kernel, b = gemm(factor), jax.random.normal(jax.random.key(1), (n,))
    table: dict[str, Any] = {}
    for share in shares:
        row: dict[str, Any] = {}
        for name, algorithm in VARIANTS.items():
            work = _sketch_and_solve(algorithm, n, columns(share, n))
            program = jax.jit(work).lower(kernel, b, jax.random.key(2)).compile()
            times = _repeat(lambda i, p=program: p(kernel, b, _key(i)), runs, warm_ups, longest)
            _, approximation = program(kernel, b, _key(0))
            stats: Any = program.memory_analysis()
            row[name] = {
                "seconds": statistics.mean(times),
                "runs": len(times),
                "peak_memory_bytes": stats.temp_size_in_bytes + stats.output_size_in_bytes,
                "error": float(_relative_error(kernel, approximation)),
            }
        row["speedup"] = row["standard"]["seconds"] / row["gpu"]["seconds"]
        table[str(share)] = row
    return table


def _sketch_and_solve(
    algorithm: Callable[..., Approximation], n: int, rank: int
) -> Callable[[Array, Array, Array], tuple[Array, Approximation]]:
    def work(kernel: Array, b: Array, key: Array) -> tuple[Array, Approximation]:
        approximation = algorithm(lambda omega: kernel @ omega, n, rank, key)
        return approximation.solve(b, jnp.array(REGULARIZER))[0], approximation

    return work


def _repeat(work: Callable[[int], PyTree], runs: int, warm_ups: int, longest: float) -> list[float]:
    """The seconds of each run after some warm-ups."""
    times: list[float] = []
    began = time.perf_counter()
    for i in range(warm_ups + runs):
        started = time.perf_counter()
        jax.block_until_ready(work(i))
        times.append(time.perf_counter() - started)
        if len(times) > 1 and time.perf_counter() - began > longest:
            break
    return times[min(warm_ups, len(times) - 1) :]


@jax.jit
def _relative_error(kernel: Float[Array, "n n"], approximation: Approximation) -> Float[Array, ""]:
    found = approximation.dense
    return jnp.linalg.norm(kernel - found) / jnp.linalg.norm(kernel)


def _key(i: int) -> Array:
    return jax.random.fold_in(jax.random.key(2), i)
