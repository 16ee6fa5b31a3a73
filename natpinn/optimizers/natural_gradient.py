"""ENGD, ENGD-W and SPRING: one optimizer with different parts."""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .. import schedule
from ..errors import InputError
from ..line_search import Fixed, Grid, LineSearch, choose, descend
from ..models import Theta
from ..objective import LeastSquares, Linearization
from ..schedule import Schedule
from ..solvers import DampedSolver, Dual, Factorization, Nystrom, Primal, SolveInfo
from .base import Demand, Optimizer, StepInfo, norm

DEFAULT_LEARNING_RATE = 0.1
DEFAULT_NORM_CAP = 1e-3  # of SPRING with a fixed rate


class NaturalGradientState(NamedTuple):
    phi: Theta  # the direction before bias correction
    step: Int[Array, ""]
    solver: Any


class NaturalGradient(Optimizer[NaturalGradientState]):
    """φ = argmin |J φ − r|² + λ|φ − μ φ_previous|², θ ← θ − η φ / √(1 − μ²ᵏ).

    Without momentum (μ = 0) this is energy natural gradient descent; with it, SPRING. With a norm
    cap C, η is at most √C / |φ|.
    """

    demand: ClassVar[Demand] = Demand.KERNEL

    solver: DampedSolver
    line_search: LineSearch
    damping: Schedule = eqx.field(converter=schedule.damping)
    momentum: Schedule = eqx.field(converter=schedule.momentum, default=0.0)
    norm_cap: Schedule | None = eqx.field(converter=schedule.norm_cap, default=None)

    def __check_init__(self):
        for part, kind in ((self.solver, DampedSolver), (self.line_search, LineSearch)):
            if not isinstance(part, kind):
                raise InputError(
                    f"a natural gradient needs a {kind.__name__}, got {part!r}: pass an object, "
                    f"as in solver=Dual() and line_search=Grid()"
                )

    def init(self, theta: Theta) -> NaturalGradientState:
        zero = jax.tree.map(jnp.zeros_like, theta)
        return NaturalGradientState(zero, jnp.array(0), self.solver.init(theta))

    def system_bytes(self, rows: int, parameters: int) -> int:
        return self.solver.system_bytes(rows, parameters)

    def is_primal(self, rows: int, parameters: int) -> bool:
        return self.solver.is_primal(rows, parameters)

    def sketch_columns(self, rows: int) -> int | None:
        return self.solver.sketch_columns(rows)

    def step(
        self,
        objective: LeastSquares,
        theta: Theta,
        state: NaturalGradientState,
        *,
        key: PRNGKeyArray,
    ) -> tuple[Theta, NaturalGradientState, StepInfo]:
        damping = schedule.at(self.damping, state.step)
        momentum = schedule.at(self.momentum, state.step)

        linearization = objective.linearize(theta)
        loss = 0.5 * jnp.sum(linearization.residual**2)
        system, solver_state = self.solver.factorize(linearization, state.solver, key=key)
        phi, info = direction(system, linearization, state.phi, momentum, damping)
        solver_state = self.solver.update(solver_state, info)

        # The state stays uncorrected: a corrected one would be corrected again at every step.
        bias = jnp.sqrt(1 - momentum ** (2.0 * (state.step + 1)))
        ahead = jax.tree.map(lambda leaf: leaf / bias, phi)
        size = self.line_search.step_size(objective, theta, ahead, loss, state.step)
        if self.norm_cap is not None:
            longest = jnp.sqrt(schedule.at(self.norm_cap, state.step))
            size = jnp.minimum(size, longest / norm(phi))

        details = {
            "step_size": size,
            "damping": info.damping,
            "momentum": momentum,
            "update_norm": size * norm(ahead),
            **info.details,
        }
        new_state = NaturalGradientState(phi, state.step + 1, solver_state)
        told = StepInfo(loss, details, info.is_recovered)
        return descend(theta, ahead, size), new_state, told


def direction(
    system: Factorization,
    linearization: Linearization,
    previous: Theta,
    momentum: Float[Array, ""],
    damping: Float[Array, ""],
) -> tuple[Theta, SolveInfo]:
    """φ = argmin |J φ − r|² + λ|φ − μ φ_previous|², before bias correction."""
    carried = jax.tree.map(lambda phi: momentum * phi, previous)
    shifted_residual = linearization.residual - linearization.jvp(carried)
    correction, info = system.solve(shifted_residual, damping)
    return jax.tree.map(jnp.add, carried, correction), info


def engd(
    damping: Any = 1e-6,
    learning_rate: Any = None,
    line_search: LineSearch | None = None,
    average: float = 0.0,
    start_at_identity: bool = True,
) -> NaturalGradient:
    """Energy natural gradient descent, dense Gramian; a line search unless a rate is given."""
    search = choose(learning_rate, line_search, default=Grid())
    return NaturalGradient(Primal(average, start_at_identity), search, damping)


def engd_w(
    damping: Any = 1e-6, learning_rate: Any = None, line_search: LineSearch | None = None
) -> NaturalGradient:
    """ENGD-W: the same steps through the kernel; a line search unless a rate is given."""
    return NaturalGradient(Dual(), choose(learning_rate, line_search, default=Grid()), damping)


def spring(
    damping: Any = 1e-6,
    momentum: Any = 0.9,
    learning_rate: Any = None,
    norm_cap: Any = DEFAULT_NORM_CAP,
    line_search: LineSearch | None = None,
) -> NaturalGradient:
    """SPRING: momentum in the regulariser; a rate of 0.1 and a cap, or a line search instead."""
    search = choose(learning_rate, line_search, default=Fixed(DEFAULT_LEARNING_RATE))
    if line_search is not None and norm_cap not in (None, DEFAULT_NORM_CAP):
        raise InputError(
            f"a line search takes the place of a norm cap, got both, with norm_cap={norm_cap!r}; "
            f"NaturalGradient(Dual(), line_search, damping, momentum, norm_cap) has both"
        )
    cap = norm_cap if line_search is None else None
    return NaturalGradient(Dual(), search, damping, momentum, cap)


def engd_w_nystrom(
    damping: Any = 1e-6,
    learning_rate: Any = None,
    line_search: LineSearch | None = None,
    rank: Any = 0.1,
    variant: str = "gpu",
) -> NaturalGradient:
    """ENGD-W with a sketch of the kernel; a line search unless a rate is given."""
    return _with_sketch(engd_w(damping, learning_rate, line_search), rank, variant)


def spring_nystrom(
    damping: Any = 1e-6,
    momentum: Any = 0.9,
    learning_rate: Any = None,
    norm_cap: Any = DEFAULT_NORM_CAP,
    line_search: LineSearch | None = None,
    rank: Any = 0.1,
    variant: str = "gpu",
) -> NaturalGradient:
    """SPRING with a sketch of the kernel; a rate of 0.1 and a cap, or a line search instead."""
    plain = spring(damping, momentum, learning_rate, norm_cap, line_search)
    return _with_sketch(plain, rank, variant)


def _with_sketch(exact: NaturalGradient, rank: Any, variant: str) -> NaturalGradient:
    """The same optimizer with a sketch in place of its solver."""
    return NaturalGradient(
        Nystrom(rank, variant), exact.line_search, exact.damping, exact.momentum, exact.norm_cap
    )
