"""ENGD, ENGD-W and SPRING: one optimizer with different parts."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from .. import schedule
from ..errors import InputError
from ..least_squares.footprint import Footprint
from ..least_squares.objective import LeastSquares
from ..models.theta import Theta
from ..schedule import Schedule
from ..solvers.base import DampedSolver
from .base import Optimizer, StepInfo, norm
from .direction import direction
from .line_search import LineSearch, descend


class NaturalGradientState(NamedTuple):
    phi: Theta  # the direction before bias correction
    step: Int[Array, ""]
    solver: PyTree


class NaturalGradient(Optimizer[NaturalGradientState]):
    """ENGD, ENGD-W and SPRING, according to its parts.

    φ = argmin |J φ − r|² + λ|φ − μ φ_previous|², θ ← θ − η φ / √(1 − μ²ᵏ) at step k.

    Without momentum (μ = 0) this is energy natural gradient descent; with it, SPRING. With a norm
    cap C, η is at most √C / |φ|.

    **Arguments:** hyper-parameters are numbers, or functions of the step such as optax's schedules.

    - `solver`: what solves for φ, as `Dual()`.
    - `line_search`: what chooses η, as `Grid()` or `Fixed(0.1)`.
    - `damping`: λ, positive, in the unit of the kernel.
    - `momentum`: μ, from 0 and below 1. Default: 0.
    - `norm_cap`: C, positive, or None for no limit. Default: None.

    **Raises:** `InputError` for a number out of its range, and for parts that are no solver or no
    line search.

        import natpinn

        optimizer = natpinn.NaturalGradient(
            natpinn.Dual(), natpinn.Grid(), damping=1e-6, momentum=0.9
        )
    """

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

    def footprint(self, rows: int, parameters: int) -> Footprint:
        return self.solver.footprint(rows, parameters)

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
