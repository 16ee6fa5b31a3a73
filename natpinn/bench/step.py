"""How long a step takes, what its parts take, and how far that is from the floor.

The floor is what no step of this method can avoid without using the structure of the network: the
fastest bare J Jᵀ of an N × P matrix that the machine's libraries offer, and one Cholesky solve. An
accurate solve has two of both, and one triangular system with all of the matrix.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree
from scipy.linalg import get_blas_funcs

from ..least_squares.footprint import Demand
from ..least_squares.linearization import Linearization
from ..least_squares.objective import LeastSquares
from ..least_squares.slabs import Slabs, Whitened, forward, slabs
from ..machine import machine
from ..models.theta import Theta, parameter_count
from ..optimizers.auto import Auto
from ..optimizers.base import Optimizer
from ..optimizers.presets import auto, spring
from ..parallel.devices import place
from ..parallel.threads import limit_lapack
from ..planning.planned import plan_step, program_bytes
from ..problems.problem import Problem
from ..solvers.accurate import Accurate, factor_of, first_factor
from ..training.steps import Batches, TrainState, Work, advance, start

SECONDS_PER_TIMING, MOST_STEPS = 0.5, 10  # steps that are timed together
DAMPING = 1e-2  # any that factorizes: the time of a step does not depend on it
FINE = 1e-20  # of the trace: a damping that needs an accurate solve, with two passes
METHODS: dict[str, Callable[[Callable[[], float]], Optimizer]] = {  # of the kernel's trace
    "spring": lambda trace: spring(damping=DAMPING),
    "auto": lambda trace: auto(),
    "accurate": lambda trace: spring(damping=FINE * trace(), solver=Accurate()),
}


def time_step(
    problem: Problem, model: Any, repeats: int = 5, method: str = "spring"
) -> dict[str, Any]:
    """One problem: seconds per step of a method of `METHODS`, its parts, the floor."""
    objective, theta, optimizer = _planned(problem, model, method)
    rows, parameters = sum(objective.row_counts(theta).values()), parameter_count(model)
    least = accurate_floor_seconds if method == "accurate" else floor_seconds
    floor = least(rows, parameters, repeats)  # with all threads
    whole = step_seconds(objective, theta, optimizer, repeats)
    with limit_lapack(objective.plan.lapack_threads):  # as in training
        parts = _parts(objective, theta, optimizer, repeats)
        floor = min(floor, least(rows, parameters, repeats))
    return {
        "problem": problem.name,
        "method": method,
        "points": {name: c.points for name, c in problem.conditions.items()},
        "rows": rows,
        "parameters": parameters,
        "step_seconds": whole,
        "floor_seconds": floor,
        "floor_ratio": whole / floor,
        "parts": parts,
        "parts_ratio": whole / sum(parts.values()),
        "peak_memory_bytes": program_bytes(objective, theta, optimizer),
        "device": machine()["device"],
    }


def time_scaling(
    make: Callable[[float, float, int | None], tuple[Problem, Any]],
    vary: Sequence[str],
    factors: Sequence[float],
    dimensions: Sequence[int],
    repeats: int = 3,
) -> dict[str, Any]:
    """Seconds per step against N, P, d and the devices, each with the exponent of its growth.

    `make` gives a problem and a model with its points and widths multiplied, in some dimension.
    """

    def measure(
        points: float = 1, widths: float = 1, d: int | None = None, devices: int = 1
    ) -> dict[str, float]:
        problem, model = make(points, widths, d)
        objective, theta, optimizer = _planned(problem, model, "spring", devices)
        return {
            "rows": sum(objective.row_counts(theta).values()),
            "parameters": parameter_count(model),
            "dimension": problem.domain.dimension,
            "devices": devices,
            "step_seconds": step_seconds(objective, theta, optimizer, repeats),
            "memory_bytes": program_bytes(objective, theta, optimizer),
        }

    devices = [2**k for k in range(len(jax.devices()).bit_length())]
    measurements: dict[str, Callable[[], list[dict[str, float]]]] = {
        "rows": lambda: [measure(points=f) for f in factors],
        "parameters": lambda: [measure(widths=f) for f in factors],
        "dimension": lambda: [measure(d=d) for d in dimensions],
        "devices": lambda: [measure(devices=k) for k in devices],
    }
    found = {name: measurements[name]() for name in vary}
    return {
        name: {
            "exponent": growth_exponent([(m[name], m["step_seconds"]) for m in series]),
            "steps": series,
        }
        for name, series in found.items()
    }


def growth_exponent(pairs: Sequence[tuple[float, float]]) -> float | None:
    """The slope of log time against log size, over the three largest sizes."""
    if len(pairs) < 2:
        return None
    sizes, times = np.log(np.array(sorted(pairs)[-3:])).T
    return float(np.polyfit(sizes, times, 1)[0])


def step_seconds(
    objective: LeastSquares, theta: Theta, optimizer: Optimizer, repeats: int = 5
) -> float:
    """The median time of a step, several of them in one call where they are short."""
    state = place(start(optimizer, theta, jax.random.key(2)), objective.plan)

    def take(steps: int) -> TrainState:
        nonlocal state
        work = place(Work(optimizer, Batches(objective), jnp.array(steps)), objective.plan)
        state, _ = advance(work, state)
        return state

    with limit_lapack(objective.plan.lapack_threads):  # as in training
        steps = max(1, min(MOST_STEPS, int(SECONDS_PER_TIMING / seconds(lambda: take(1), 1))))
        return seconds(lambda: take(steps), repeats) / steps


def _planned(
    problem: Problem, model: Any, method: str, devices: int = 1
) -> tuple[LeastSquares, Theta, Optimizer]:
    objective, theta = problem.objective(model, problem.sample(jax.random.key(1)))
    optimizer = METHODS[method](lambda: float(_kernel_trace(objective, theta)))
    planned = plan_step(objective, theta, optimizer, devices=devices)
    return objective.planned(planned.plan), theta, optimizer


@eqx.filter_jit
def _kernel_trace(objective: LeastSquares, theta: Theta) -> Float[Array, ""]:
    return objective.linearize(theta).kernel_trace()


def floor_seconds(rows: int, parameters: int, repeats: int = 5) -> float:
    """The fastest bare J Jᵀ of a random matrix, and one Cholesky solve."""
    jacobian = jax.random.normal(jax.random.key(0), (rows, parameters))
    products = [seconds(lambda: gemm(jacobian), repeats)]
    if jax.default_backend() == "gpu":
        products.append(seconds(lambda: _syrk(jacobian), repeats))
    else:
        (dsyrk,) = get_blas_funcs(["syrk"], dtype=np.float64)

        columns = np.asarray(jacobian).T  # in the order that BLAS wants, so nothing is copied
        products.append(seconds(lambda: dsyrk(1.0, columns, trans=1, lower=1), repeats))
    kernel = gemm(jacobian)
    return min(products) + seconds(lambda: _solve(kernel, jacobian[:, 0]), repeats)


def accurate_floor_seconds(rows: int, parameters: int, repeats: int = 5) -> float:
    """Twice the floor of a kernel, and L⁻¹ M for a matrix M with the smaller side of J in rows."""
    side, columns = sorted((rows, parameters))
    matrix = jax.random.normal(jax.random.key(0), (side, columns))
    factor = jnp.linalg.cholesky(gemm(matrix) + side * jnp.eye(side))
    if jax.default_backend() == "gpu":
        whiten = seconds(lambda: forward(factor, matrix), repeats)
    else:
        (dtrsm,) = get_blas_funcs(["trsm"], dtype=np.float64)
        lower, b = np.asarray(factor), np.asarray(matrix).T  # as rows, in the order that BLAS wants

        whiten = seconds(lambda: dtrsm(1.0, lower.T, b, side=1, lower=0), repeats)
    return 2 * floor_seconds(side, columns, repeats) + whiten


def seconds(work: Callable[[], PyTree], repeats: int = 5) -> float:
    """The median time of some work, after one round that compiles and warms up."""
    jax.block_until_ready(work())
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        jax.block_until_ready(work())
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _parts(
    objective: LeastSquares, theta: Theta, optimizer: Optimizer, repeats: int
) -> dict[str, float]:
    """The seconds of each part of a step, each compiled by itself."""
    linearize = eqx.filter_jit(lambda objective, theta: objective.linearize(theta))
    resample = eqx.filter_jit(lambda objective, key: objective.resample(key))
    kernel = eqx.filter_jit(lambda linearization: linearization.kernel())
    gramian = eqx.filter_jit(lambda linearization: linearization.gramian())
    forward = eqx.filter_jit(lambda linearization, v: linearization.jvp(v))
    backward = eqx.filter_jit(lambda linearization, y: linearization.vjp(y))
    residual = eqx.filter_jit(lambda objective, theta: objective.residual(theta))
    linearization = linearize(objective, theta)
    rows, parameters = len(linearization.residual), parameter_count(theta)
    is_primal = optimizer.footprint(rows, parameters).demand is Demand.GRAMIAN
    is_accurate = isinstance(getattr(optimizer, "solver", None), Accurate)
    system = gramian if is_primal else kernel
    matrix = system(linearization)
    b = ravel_pytree(theta)[0] if is_primal else linearization.residual
    key = jax.random.key(3)
    work: dict[str, Callable[[], PyTree]] = {
        "sample": lambda: resample(objective, key),
        "linearize": lambda: linearize(objective, theta),
        "Gramian" if is_primal else "kernel": lambda: system(linearization),
        "solve": lambda: _solve(matrix, b),
        "jvp": lambda: forward(linearization, theta),
        "vjp": lambda: backward(linearization, linearization.residual),
    }
    if is_accurate and not isinstance(optimizer, Auto):
        del work["solve"], work["vjp"]
        work |= _accurate_parts(linearization, matrix, FINE * jnp.trace(matrix))
    if isinstance(optimizer, Auto):  # compares what a step did with what it should do
        work |= {
            "jvp of the step": lambda: forward(linearization, theta),
            "residual after it": lambda: residual(objective, theta),
        }
    return {name: seconds(part, repeats) for name, part in work.items()}


def _accurate_parts(
    linearization: Linearization, matrix: Float[Array, "m m"], damping: Float[Array, ""]
) -> dict[str, Callable[[], PyTree]]:
    """The parts of an accurate solve with two passes."""
    plan, b = linearization.objective.plan, linearization.residual

    def on_slabs(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
        return eqx.filter_jit(
            lambda linearization, *arguments: linearization.on_rows(
                lambda rows, *arguments: function(slabs(rows, plan), *arguments), *arguments
            )
        )

    factorize = eqx.filter_jit(first_factor)
    form = on_slabs(lambda m: m.start(1))
    whiten = on_slabs(lambda m, whitened, factor: m.whiten(whitened, factor))
    gram = on_slabs(lambda m, whitened: m.gram(whitened, damping))

    @on_slabs
    def finish(m: Slabs, whitened: Whitened, gram: Array) -> Theta:
        z = jax.scipy.linalg.cho_solve((factor_of(gram), True), m.right_side(whitened, b))
        return m.solution(whitened, z)

    factor, formed = factorize(matrix), form(linearization)
    whitened = whiten(linearization, formed, factor)
    product = gram(linearization, whitened)
    return {
        "first factor": lambda: factorize(matrix),
        "form": lambda: form(linearization),
        "whiten": lambda: whiten(linearization, formed, factor),
        "Gram matrix": lambda: gram(linearization, whitened),
        "second factor, solve": lambda: finish(linearization, whitened, product),
    }


@jax.jit
def gemm(jacobian: Float[Array, "n p"]) -> Float[Array, "n n"]:
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
