"""SPRING that finds its damping, momentum and step size by itself."""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .. import schedule
from ..errors import InputError
from ..least_squares.objective import LeastSquares
from ..models.theta import Theta
from ..schedule import Schedule
from ..solvers.dual import Dual
from ..solvers.primal import Primal
from ..solvers.smaller import Smaller
from .base import Demand, Optimizer, StepInfo, norm
from .direction import direction
from .line_search import descend
from .trend import Trend

MOST_MOMENTUM = 0.999
YOUNGEST = 10.0  # an age that counts before the first step: momentum starts at one half
DAMPING_FACTOR = 4.0  # at most, from one step to the next
HIGHEST_DAMPING = 1e2  # relative, as all dampings here
SETBACK = 10.0  # what the damping is multiplied with where a step is taken back
JUMP = 10.0  # times the loss so far, on a fresh batch: beyond it a step is taken back
AGEING_BACK = 2.0  # how much younger a rising loss makes
LONGEST = 1.0  # of the direction before bias correction, which would be a whole step
FADING = 0.5  # what is left of the direction, at least, after a step that surprised too much
ASTRAY = 10.0  # times its lowest loss: a search so far above it, for long or at its end, goes back
COOLING = 0.2  # what is left then of the surprise that it wants
STAYS = 0.8  # of the share of a run after which it settles: an end that is estimated may move


class AutoState(NamedTuple):
    phi: Theta  # the direction before bias correction
    before: Theta  # the parameters before the last step
    best: Theta  # those where a search had its lowest loss
    step: Int[Array, ""]
    bias: Float[Array, ""]
    damping: Float[Array, ""]  # relative to the trace of the kernel
    age: Float[Array, ""]
    trend: Trend
    is_settling: Bool[Array, ""]
    heat: Float[Array, ""]  # the share of the wanted surprise that a search still wants


class Auto(Optimizer[AutoState]):
    """SPRING steps whose settings follow from what is seen of the loss and the end of the run.

    Damping, relative to the trace of the kernel, goes up when a step surprises and down when it
    does not: the surprise is how far the residual is from its linear prediction, relative to the
    predicted change. A run first searches, with so little damping that steps surprise a lot, which
    learns fast and keeps the loss high. For the last part of a run whose end is known it settles:
    it begins again with much damping and no momentum, and allows for `calm` surprises only. What a
    direction has from before then fades as far as it surprises, which no damping prevents. A search
    that has lost its way, as from data with noise, goes back to its lowest loss and wants much less
    surprise from then on.

    Momentum 1 − c/(c' + age) grows as in Nesterov's method with an age that counts steps and goes
    back while the loss rises on fresh batches. The step is a fixed share of the direction, and
    falls to zero at the end. A step after which a fresh batch has many times the loss is taken
    back, and one that leads to no finite residual is not taken. A batch that had no finite residual
    before the last step either says nothing about it, and its own step is rejected.
    """

    demand: ClassVar[Demand] = Demand.KERNEL

    solver: Dual | Primal | Smaller
    learning_rate: Schedule = eqx.field(converter=schedule.learning_rate)
    surprise: Schedule = eqx.field(converter=schedule.surprise)
    damping: Schedule = eqx.field(converter=schedule.damping)
    least_damping: Schedule = eqx.field(converter=schedule.least_damping)
    forgetting: Schedule = eqx.field(converter=schedule.forgetting)
    calm: Schedule = eqx.field(converter=schedule.calm)
    settle_from: Schedule = eqx.field(converter=schedule.settle_from)
    horizon: Float[Array, ""] = eqx.field(converter=schedule.horizon, default=jnp.inf)

    def __check_init__(self):
        if not isinstance(self.solver, Dual | Primal | Smaller):
            raise InputError(
                f"auto measures its damping by the trace of the kernel, and needs a solver that "
                f"has it: Dual(), Primal() or Smaller(), got {self.solver!r}"
            )
        if isinstance(self.solver, Primal) and self.solver.average:
            raise InputError(
                f"auto solves each batch by itself: take Primal(average=0), got "
                f"average={self.solver.average}"
            )

    def until(self, horizon: float) -> "Auto":
        return eqx.tree_at(lambda auto: auto.horizon, self, schedule.horizon(horizon))

    def init(self, theta: Theta) -> AutoState:
        zero = jax.tree.map(jnp.zeros_like, theta)
        start = schedule.at(self.damping, jnp.array(0))
        nothing = jnp.array(0.0)
        searching = jnp.array(False)
        return AutoState(
            zero,
            theta,
            theta,
            jnp.array(0),
            nothing,
            start,
            nothing,
            Trend.start(),
            searching,
            jnp.array(1.0),
        )

    def skip(self, state: AutoState) -> AutoState:
        """The end of the run has come one step nearer."""
        return state._replace(step=state.step + 1)

    def system_bytes(self, rows: int, parameters: int) -> int:
        return self.solver.system_bytes(rows, parameters)

    def is_primal(self, rows: int, parameters: int) -> bool:
        return self.solver.is_primal(rows, parameters)

    def step(
        self, objective: LeastSquares, theta: Theta, state: AutoState, *, key: PRNGKeyArray
    ) -> tuple[Theta, AutoState, StepInfo]:
        theta, state = self._enter_phase(theta, state)
        linearization = objective.linearize(theta)
        residual = linearization.residual
        loss = 0.5 * jnp.sum(residual**2)
        is_lost = state.trend.is_jump(loss, JUMP) & self._is_to_blame(objective, state, loss)

        system, _ = self.solver.factorize(linearization, None, key=key)
        scale = system.trace()
        momentum = self._momentum(state)
        phi, info = direction(system, linearization, state.phi, momentum, state.damping * scale)
        bias = 1 - momentum**2 * (1 - state.bias)
        rate = schedule.at(self.learning_rate, state.step) * self._remaining(state.step)
        rate = jnp.minimum(rate / jnp.sqrt(bias), LONGEST)
        reached = descend(theta, phi, rate)

        change = rate * linearization.jvp(phi)
        after = objective.residual(reached)
        size = jnp.linalg.norm(change)
        surprise = jnp.where(size > 0, jnp.linalg.norm(after - residual + change) / size, 0.0)
        is_taken = ~is_lost & jnp.isfinite(surprise)

        trend = state.trend.follow(loss, state.age)
        best = _where(trend.is_lowest, theta, state.best)
        age = jnp.where(trend.is_rising, jnp.maximum(state.age - AGEING_BACK, 0.0), state.age + 1)
        excess = surprise / self._wanted_surprise(state)
        faded = jnp.where(state.is_settling, jnp.clip(excess**-0.5, FADING, 1.0), 1.0)
        followed = AutoState(
            jax.tree.map(lambda leaf: faded * leaf, phi),
            theta,
            best,
            state.step + 1,
            bias,
            self._next_damping(state.step, info.damping / scale, excess),
            age,
            trend,
            state.is_settling,
            state.heat,
        )
        back = _where(is_lost, state.before, theta)
        set_back = self._set_back(state._replace(best=best, trend=trend), back)
        theta, new_state = _where(is_taken, (reached, followed), (back, set_back))
        details = {
            "step_size": jnp.where(is_taken, rate, 0.0),
            "damping": info.damping,
            "momentum": momentum,
            "update_norm": jnp.where(is_taken, rate * norm(phi), 0.0),
            "surprise": surprise,
            "heat": state.heat,
        }
        shown = jnp.where(is_lost, jnp.exp(state.trend.fast), loss)  # of where it is back to
        return theta, new_state, StepInfo(shown, details, info.is_recovered)

    def _is_to_blame(
        self, objective: LeastSquares, state: AutoState, loss: Float[Array, ""]
    ) -> Bool[Array, ""]:
        """Whether it is the last step, not the points of this batch, that gives no finite loss."""

        def was_sound() -> Bool[Array, ""]:
            return jnp.isfinite(objective.residual(state.before)).all()

        return jax.lax.cond(jnp.isfinite(loss), lambda: jnp.array(True), was_sound)

    def _enter_phase(self, theta: Theta, state: AutoState) -> tuple[Theta, AutoState]:
        """Where a run begins to settle, it has no direction and much damping, but keeps its age.

        So it does where a search went astray, which is cooler and at its lowest loss again.
        """
        share = schedule.at(self.settle_from, state.step) * jnp.where(state.is_settling, STAYS, 1)
        is_settling = state.step >= share * self.horizon
        begins, ends = is_settling & ~state.is_settling, ~is_settling & state.is_settling
        trend = _where(ends, Trend.start(), state.trend)
        is_astray = ~is_settling & trend.is_long_above(ASTRAY)
        goes_back = is_astray | (begins & trend.is_above(ASTRAY))
        starts = begins | is_astray
        damping = jnp.maximum(state.damping, schedule.at(self.damping, state.step))
        return _where(goes_back, state.best, theta), state._replace(
            phi=jax.tree.map(lambda leaf: jnp.where(starts, 0.0, leaf), state.phi),
            before=_where(goes_back, state.best, state.before),
            bias=jnp.where(starts, 0.0, state.bias),
            damping=jnp.where(starts, damping, state.damping),
            trend=trend.forgiven(goes_back),
            is_settling=is_settling,
            heat=jnp.where(is_astray, COOLING, 1.0) * state.heat,
        )

    def _momentum(self, state: AutoState) -> Float[Array, ""]:
        forgetting = schedule.at(self.forgetting, state.step)
        return jnp.clip(1 - forgetting / (state.age + YOUNGEST), 0.0, MOST_MOMENTUM)

    def _remaining(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """1 until a run settles, then down to 0 at its end."""
        begin = schedule.at(self.settle_from, step)
        return jnp.clip((1 - step / self.horizon) / (1 - begin), 0.0, 1.0)

    def _wanted_surprise(self, state: AutoState) -> Float[Array, ""]:
        searching, settling = (schedule.at(s, state.step) for s in (self.surprise, self.calm))
        return jnp.where(state.is_settling, settling, state.heat * searching)

    def _next_damping(
        self, step: Int[Array, ""], used: Float[Array, ""], excess: Float[Array, ""]
    ) -> Float[Array, ""]:
        moved = used * jnp.clip(excess**0.5, 1 / DAMPING_FACTOR, DAMPING_FACTOR)
        return jnp.clip(moved, schedule.at(self.least_damping, step), HIGHEST_DAMPING)

    def _set_back(self, state: AutoState, theta: Theta) -> AutoState:
        """Where a step is not taken or taken back: more damping, and no direction."""
        return state._replace(
            phi=jax.tree.map(jnp.zeros_like, state.phi),
            before=theta,
            step=state.step + 1,
            bias=jnp.zeros_like(state.bias),
            damping=jnp.minimum(SETBACK * state.damping, HIGHEST_DAMPING),
            age=0.5 * state.age,
        )


def _where(condition: Bool[Array, ""], tree: Any, other: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), tree, other)
