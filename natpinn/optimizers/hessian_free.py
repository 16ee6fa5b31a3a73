"""Hessian-free: Newton steps by truncated conjugate gradients (Martens and Sutskever 2012)."""

import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .. import schedule
from ..checks import check_flag
from ..errors import InputError, unknown
from ..least_squares.blocks import FLOAT
from ..least_squares.footprint import Demand, Footprint
from ..least_squares.linearization import Linearization
from ..least_squares.objective import LeastSquares
from ..models.theta import Theta
from ..schedule import Number
from .base import Optimizer, StepInfo
from .line_search import LineSearch, descend

Product = Callable[[Float[Array, " p"]], Float[Array, " p"]]
WARM_START = 0.95  # of the last solution
SPACING = 1.3  # iterates number 1, 1.3, 1.3², … are kept for backtracking
SPAN = 10  # iterations, or a tenth of all, over which progress is measured
POOR, GOOD = 0.25, 0.75  # of the reduction that the model promised: damp more, damp less
RAISE, LOWER = 3 / 2, 2 / 3
VECTORS = 8  # of the parameters' length that the iteration has at once, beside what is kept


def gauss_newton(linearization: Linearization) -> Callable[[Theta], Theta]:
    """v ↦ JᵀJ v."""
    return lambda v: linearization.vjp(linearization.jvp(v))


def hessian(linearization: Linearization) -> Callable[[Theta], Theta]:
    """v ↦ ∇²L v."""
    gradient = jax.grad(linearization.objective.loss)
    return lambda v: jax.jvp(gradient, (linearization.theta,), (v,))[1]


CURVATURES = {"ggn": gauss_newton, "hessian": hessian}


class HessianFreeState(NamedTuple):
    solution: Float[Array, " p"]  # of the last system
    damping: Float[Array, ""]
    step: Int[Array, ""]


class Iterates(NamedTuple):
    """Conjugate gradients underway on (C + λI) x = b, and the iterates that are kept."""

    x: Float[Array, " p"]
    left: Float[Array, " p"]  # b − (C + λI) x
    search: Float[Array, " p"]
    done: Int[Array, ""]  # iterations
    models: Float[Array, " most"]  # ½xᵀ(C + λI)x − bᵀx of every iterate
    kept: Float[Array, "few p"]
    is_over: Bool[Array, ""]


def _start_of_damping(value: Number) -> Float[Array, ""]:
    if callable(value):
        raise InputError("damping must be a number: Hessian-free adapts it by itself")
    return schedule.at(schedule.schedule(value, "damping", minimum=0.0), jnp.array(0))


class HessianFree(Optimizer[HessianFreeState]):
    """θ + η x, with (C + λI) x = −∇L solved roughly; C is the Gauss-Newton matrix or the Hessian.

    Conjugate gradients start from the last solution and stop when they gain too little. Some of
    their iterates are kept; going back from the last one, the first before which the loss is larger
    is taken, and a line search follows. The damping goes up or down with how well the quadratic
    model has predicted the loss.

    **Arguments:**

    - `damping`: λ of the first step, at least 0.
    - `line_search`: what chooses η, as `Armijo()`.
    - `curvature`: `"ggn"`, the Gauss-Newton matrix, or `"hessian"`. Default: `"ggn"`.
    - `adapt_damping`: whether λ changes from step to step. Default: True.
    - `backtracks`: whether an earlier iterate is taken where its loss is lower. Default: True.
    - `most_iterations`: of conjugate gradients in a step. Default: 250.
    - `tolerance`: of the residual, relative to the gradient, at which iterations end. Default:
      1e-5.
    - `progress`: iterations end when the last ten, or the last tenth, have lowered the quadratic
      model by less than this share of what all have. Default: 1e-4.

    **Raises:** `InputError` for a number out of its range, for a schedule as damping, and for
    another curvature.

        import natpinn

        optimizer = natpinn.HessianFree(1.0, natpinn.Armijo(), curvature="hessian")
    """

    damping: Float[Array, ""] = eqx.field(converter=_start_of_damping)
    line_search: LineSearch
    curvature: str = eqx.field(static=True, default="ggn")
    adapt_damping: bool = eqx.field(static=True, default=True)
    backtracks: bool = eqx.field(static=True, default=True)
    most_iterations: int = schedule.count("most_iterations", 250)
    tolerance: float = eqx.field(static=True, default=1e-5)  # relative residual
    progress: float = eqx.field(static=True, default=1e-4)  # relative, of the quadratic model

    def __check_init__(self):
        if self.curvature not in CURVATURES:
            raise unknown("curvature", str(self.curvature), CURVATURES)
        for name in ("adapt_damping", "backtracks"):
            check_flag(getattr(self, name), name)
        for name in ("tolerance", "progress"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} must be from 0 and below 1, got {getattr(self, name)!r}")
        if not isinstance(self.line_search, LineSearch):
            raise InputError(f"line_search must be a LineSearch, got {self.line_search!r}")

    def init(self, theta: Theta) -> HessianFreeState:
        flat, _ = ravel_pytree(theta)
        return HessianFreeState(jnp.zeros_like(flat), self.damping, jnp.array(0))

    def footprint(self, rows: int, parameters: int) -> Footprint:
        vectors = len(self._kept_counts) + VECTORS
        return Footprint(Demand.PRODUCTS, FLOAT * parameters * vectors)

    def step(
        self, objective: LeastSquares, theta: Theta, state: HessianFreeState, *, key: PRNGKeyArray
    ) -> tuple[Theta, HessianFreeState, StepInfo]:
        linearization = objective.linearize(theta)
        loss = 0.5 * jnp.sum(linearization.residual**2)
        gradient, unravel = ravel_pytree(linearization.vjp(linearization.residual))
        curvature = CURVATURES[self.curvature](linearization)

        def product(v: Float[Array, " p"]) -> Float[Array, " p"]:
            return ravel_pytree(curvature(unravel(v)))[0] + state.damping * v

        def loss_after(x: Float[Array, " p"]) -> Float[Array, ""]:
            reached = objective.loss(descend(theta, unravel(x), -1.0))
            return jnp.nan_to_num(reached, nan=jnp.inf)

        found = self._solve(product, -gradient, WARM_START * state.solution)
        last_loss = loss_after(found.x)
        promised = found.models[found.done]
        ratio = jnp.where(promised < 0, (last_loss - loss) / promised, 0.0)
        damping = self._next_damping(state.damping, ratio)
        x = self._backtrack(found, last_loss, loss_after)
        direction = unravel(-x)
        size = self.line_search.step_size(objective, theta, direction, loss, state.step)
        details = {
            "step_size": size,
            "damping": state.damping,
            "update_norm": size * jnp.linalg.norm(x),
            "cg_iterations": found.done.astype(loss.dtype),
            "reduction_ratio": ratio,
        }
        new_state = HessianFreeState(found.x, damping, state.step + 1)
        return descend(theta, direction, size), new_state, StepInfo(loss, details)

    @property
    def _kept_counts(self) -> list[int]:
        """After how many iterations an iterate is kept; the start and the last one are, too."""
        powers = range(math.ceil(math.log(self.most_iterations, SPACING)) + 1)
        counts = {math.ceil(SPACING**j) for j in powers}
        return [0, *sorted(count for count in counts if count <= self.most_iterations)]

    def _solve(
        self, product: Product, b: Float[Array, " p"], start: Float[Array, " p"]
    ) -> Iterates:
        counts = self._kept_counts
        slots = np.full(self.most_iterations + 1, len(counts))  # the last one is for all the others
        slots[counts] = np.arange(len(counts))
        slot_of = jnp.array(slots)

        def model(x: Float[Array, " p"], left: Float[Array, " p"]) -> Float[Array, ""]:
            return -0.5 * jnp.vdot(x, b + left)

        def is_open(now: Iterates) -> Array:
            return ~now.is_over & (now.done < self.most_iterations)

        def iterate(now: Iterates) -> Iterates:
            along = product(now.search)
            squared = jnp.vdot(now.left, now.left)
            bend = jnp.vdot(now.search, along)
            # Never further along negative curvature; a first step along the gradient is short.
            short = jnp.where(now.done == 0, 1 / jnp.sqrt(squared), 0.0)
            size = jnp.where(bend > 0, squared / bend, short)
            x, left = now.x + size * now.search, now.left - size * along
            count = now.done + 1
            models = now.models.at[count].set(model(x, left))
            search = left + jnp.vdot(left, left) / squared * now.search
            kept = now.kept.at[slot_of[count]].set(x)
            is_over = self._is_over(models, count, left, b) | ~(bend > 0)
            return Iterates(x, left, search, count, models, kept, is_over)

        left = b - product(start)
        models = jnp.zeros(self.most_iterations + 1).at[0].set(model(start, left))
        kept = jnp.zeros((len(counts) + 1, len(b))).at[0].set(start)
        is_solved = jnp.linalg.norm(left) <= self.tolerance * jnp.linalg.norm(b)
        first = Iterates(start, left, left, jnp.array(0), models, kept, is_solved)
        return jax.lax.while_loop(is_open, iterate, first)

    def _is_over(
        self,
        models: Float[Array, " most"],
        count: Int[Array, ""],
        left: Float[Array, " p"],
        b: Float[Array, " p"],
    ) -> Bool[Array, ""]:
        """Whether the system is solved, or the last iterations gained too little."""
        span = jnp.maximum(SPAN, count // SPAN)
        gained = models[count] - models[jnp.maximum(count - span, 0)]
        is_slow = gained > self.progress * (models[count] - models[0])  # both are negative
        is_solved = jnp.linalg.norm(left) <= self.tolerance * jnp.linalg.norm(b)
        return is_solved | ((count > span) & is_slow)

    def _next_damping(self, damping: Float[Array, ""], ratio: Float[Array, ""]) -> Float[Array, ""]:
        if not self.adapt_damping:
            return damping
        factor = jnp.where(ratio < POOR, RAISE, jnp.where(ratio > GOOD, LOWER, 1.0))
        return damping * factor

    def _backtrack(
        self,
        found: Iterates,
        last_loss: Float[Array, ""],
        loss_after: Callable[[Float[Array, " p"]], Float[Array, ""]],
    ) -> Float[Array, " p"]:
        """The iterate before which the loss was larger, going back from the last one."""
        if not self.backtracks:
            return found.x
        counts = jnp.array(self._kept_counts)
        newest = jnp.sum(counts < found.done) - 1

        def is_open(carry: tuple[Array, Array, Array, Array]) -> Array:
            slot, _, _, is_falling = carry
            return is_falling & (slot >= 0)

        def go_back(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
            slot, best, best_loss, _ = carry
            candidate = found.kept[slot]
            loss = loss_after(candidate)
            is_better = (loss < best_loss) | jnp.isinf(best_loss)
            best = jnp.where(is_better, candidate, best)
            return slot - 1, best, jnp.minimum(loss, best_loss), is_better

        start = (newest, found.x, last_loss, jnp.array(True))
        return jax.lax.while_loop(is_open, go_back, start)[1]
