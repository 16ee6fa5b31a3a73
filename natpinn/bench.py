"""How long a step takes, what its parts take, and how far that is from the floor.

The floor is what no step of this method can avoid without using the structure of the network: the
fastest bare J Jᵀ of an N × P matrix that the machine's libraries offer, and one Cholesky solve.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import get_blas_funcs

from .models import parameter_count
from .optimizers import spring
from .problem import Problem
from .records import machine
from .train import Work, advance, start

SECONDS_PER_TIMING, MOST_STEPS = 0.5, 10  # steps that are timed together
DAMPING = 1e-2  # any that factorizes: the time of a step does not depend on it


def bench_step(problem: Problem, model: Any, repeats: int = 5) -> dict[str, Any]:
    """One problem: seconds per step of SPRING with a fixed learning rate, its parts, the floor."""
    objective, theta = problem.objective(model, problem.sample(jax.random.key(1)))
    optimizer = spring(damping=DAMPING)
    state = start(optimizer, theta, jax.random.key(2))

    def take(steps: int) -> Any:
        nonlocal state
        state, _ = advance(Work(optimizer, objective, jnp.array(steps)), state)
        return state

    steps = max(1, min(MOST_STEPS, int(SECONDS_PER_TIMING / seconds(lambda: take(1), 1))))
    whole = seconds(lambda: take(steps), repeats) / steps
    where = machine()  # before the floor is timed: its matrix is not part of a step
    rows, parameters = len(objective.residual(theta)), parameter_count(model)
    floor = floor_seconds(rows, parameters, repeats)
    return {
        "problem": problem.name,
        "points": {name: c.points for name, c in problem.conditions.items()},
        "rows": rows,
        "parameters": parameters,
        "step_seconds": whole,
        "floor_seconds": floor,
        "floor_ratio": whole / floor,
        "parts": _parts(objective, theta, repeats),
        "peak_memory_bytes": where["peak_memory_bytes"],
        "device": where["device"],
    }


def floor_seconds(rows: int, parameters: int, repeats: int = 5) -> float:
    """The fastest bare J Jᵀ of a random matrix, and one Cholesky solve."""
    jacobian = jax.random.normal(jax.random.key(0), (rows, parameters))
    products = [seconds(lambda: _gemm(jacobian), repeats)]
    if jax.default_backend() == "gpu":
        products.append(seconds(lambda: _syrk(jacobian), repeats))
    else:
        (dsyrk,) = get_blas_funcs(["syrk"], dtype=np.float64)

        columns = np.asarray(jacobian).T  # in the order that BLAS wants, so nothing is copied
        products.append(seconds(lambda: dsyrk(1.0, columns, trans=1, lower=1), repeats))
    kernel = _gemm(jacobian)
    return min(products) + seconds(lambda: _solve(kernel, jacobian[:, 0]), repeats)


def seconds(work: Callable[[], Any], repeats: int = 5) -> float:
    """The median time of some work, after one round that compiles and warms up."""
    jax.block_until_ready(work())
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        jax.block_until_ready(work())
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _parts(objective: Any, theta: Any, repeats: int) -> dict[str, float]:
    """The seconds of each part of a step, each compiled by itself."""
    linearize = eqx.filter_jit(lambda objective, theta: objective.linearize(theta))
    linearization = linearize(objective, theta)
    kernel = linearization.kernel()
    key = jax.random.key(3)
    resample = eqx.filter_jit(lambda objective, key: objective.resample(key))
    assemble = eqx.filter_jit(lambda linearization: linearization.kernel())
    forward = eqx.filter_jit(lambda linearization, v: linearization.jvp(v))
    backward = eqx.filter_jit(lambda linearization, y: linearization.vjp(y))
    work = {
        "sample": lambda: resample(objective, key),
        "linearize": lambda: linearize(objective, theta),
        "kernel": lambda: assemble(linearization),
        "solve": lambda: _solve(kernel, linearization.residual),
        "jvp": lambda: forward(linearization, theta),
        "vjp": lambda: backward(linearization, linearization.residual),
    }
    return {name: seconds(part, repeats) for name, part in work.items()}


@jax.jit
def _gemm(jacobian: Float[Array, "n p"]) -> Float[Array, "n n"]:
    return jacobian @ jacobian.T


@jax.jit
def _syrk(jacobian: Float[Array, "n p"]) -> Float[Array, "n n"]:
    n = len(jacobian)
    return jax.lax.linalg.symmetric_product(jacobian, jnp.zeros((n, n)))


@jax.jit
def _solve(kernel: Float[Array, "n n"], b: Float[Array, " n"]) -> Float[Array, " n"]:
    damped = kernel + DAMPING * jnp.trace(kernel) / len(kernel) * jnp.eye(len(kernel))
    factor = jax.lax.linalg.cholesky(damped, symmetrize_input=False)
    return jax.scipy.linalg.cho_solve((factor, True), b)
