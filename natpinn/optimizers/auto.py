"""SPRING that finds its damping, momentum and step size by itself."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .. import schedule
from ..errors import InputError
from ..least_squares.footprint import Footprint
from ..least_squares.objective import LeastSquares
from ..models.theta import Theta
from ..schedule import Schedule
from ..solvers.base import DampedSolver
from .base import Optimizer, StepInfo, norm
from .direction import direction
from .line_search import descend
from .trend import Trend


class AutoRule(eqx.Module):
    """The numbers in auto's rule, which nobody needs to set; benchmarks/auto.py varies them."""

    most_momentum: float = eqx.field(static=True, default=0.999)
    youngest: float = eqx.field(static=True, default=10.0)
    """An age that counts before the first step: momentum starts at one half."""
    damping_factor: float = eqx.field(static=True, default=4.0)
    """The most that the damping is multiplied or divided by from one step to the next."""
    highest_damping: float = eqx.field(static=True, default=1e2)
    setback: float = eqx.field(static=True, default=10.0)
    """What the damping is multiplied with where a step is taken back."""
    jump: float = eqx.field(static=True, default=10.0)
    """Times the loss so far, on a fresh batch: beyond it a step is taken back."""
    ageing_back: float = eqx.field(static=True, default=2.0)
    """How much younger a step makes a run whose loss rises."""
    longest: float = eqx.field(static=True, default=1.0)
    """Of the direction before bias correction, which would be a whole step."""
    fading: float = eqx.field(static=True, default=0.5)
    """What is left of the direction, at least, after a step that surprised too much."""
    astray: float = eqx.field(static=True, default=10.0)
    """Times its lowest loss: a search so far above it, for long or at its end, goes back."""
    cooling: float = eqx.field(static=True, default=0.2)
    """What is left then of the surprise that it wants."""
    stays: float = eqx.field(static=True, default=0.8)
    """Of `settle_from`. The end of a run with a budget is estimated from its speed. Once a run
    settles, it searches again only if less than this part of the search has passed by a new
    estimate."""


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

    solver: DampedSolver
    learning_rate: Schedule = eqx.field(converter=schedule.learning_rate)
    surprise: Schedule = eqx.field(converter=schedule.surprise)
    damping: Schedule = eqx.field(converter=schedule.damping)
    least_damping: Schedule = eqx.field(converter=schedule.least_damping)
    forgetting: Schedule = eqx.field(converter=schedule.forgetting)
    calm: Schedule = eqx.field(converter=schedule.calm)
    settle_from: Schedule = eqx.field(converter=schedule.settle_from)
    horizon: Float[Array, ""] = eqx.field(converter=schedule.horizon, default=jnp.inf)
    rule: AutoRule = AutoRule()

    def __check_init__(self):
        if not isinstance(self.solver, DampedSolver):
            raise InputError(f"auto needs a solver, as Smaller() or Dual(), got {self.solver!r}")
        if self.solver.remembers:
            raise InputError(
                f"auto solves each batch by itself, and {self.solver!r} depends on the batches "
                f"before: take Smaller(), Dual(), Primal() or Nystrom(rank)"
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

    def footprint(self, rows: int, parameters: int) -> Footprint:
        return self.solver.footprint(rows, parameters)

    def step(
        self, objective: LeastSquares, theta: Theta, state: AutoState, *, key: PRNGKeyArray
    ) -> tuple[Theta, AutoState, StepInfo]:
        theta, state = self._enter_phase(theta, state)
        linearization = objective.linearize(theta)
        residual = linearization.residual
        loss = 0.5 * jnp.sum(residual**2)
        is_lost = state.trend.is_jump(loss, self.rule.jump) & self._is_to_blame(
            objective, state, loss
        )

        system, _ = self.solver.factorize(linearization, None, key=key)
        scale = system.trace()
        momentum = self._momentum(state)
        phi, info = direction(system, linearization, state.phi, momentum, state.damping * scale)
        bias = 1 - momentum**2 * (1 - state.bias)
        rate = schedule.at(self.learning_rate, state.step) * self._remaining(state.step)
        rate = jnp.minimum(rate / jnp.sqrt(bias), self.rule.longest)
        reached = descend(theta, phi, rate)

        change = rate * linearization.jvp(phi)
        after = objective.residual(reached)
        size = jnp.linalg.norm(change)
        surprise = jnp.where(size > 0, jnp.linalg.norm(after - residual + change) / size, 0.0)
        is_taken = ~is_lost & jnp.isfinite(surprise)

        trend = state.trend.follow(loss, state.age)
        best = _where(trend.is_lowest, theta, state.best)
        age = jnp.where(
            trend.is_rising, jnp.maximum(state.age - self.rule.ageing_back, 0.0), state.age + 1
        )
        excess = surprise / self._wanted_surprise(state)
        faded = jnp.where(state.is_settling, jnp.clip(excess**-0.5, self.rule.fading, 1.0), 1.0)
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
        share = schedule.at(self.settle_from, state.step) * jnp.where(
            state.is_settling, self.rule.stays, 1
        )
        is_settling = state.step >= share * self.horizon
        begins, ends = is_settling & ~state.is_settling, ~is_settling & state.is_settling
        trend = _where(ends, Trend.start(), state.trend)
        is_astray = ~is_settling & trend.is_long_above(self.rule.astray)
        goes_back = is_astray | (begins & trend.is_above(self.rule.astray))
        starts = begins | is_astray
        damping = jnp.maximum(state.damping, schedule.at(self.damping, state.step))
        return _where(goes_back, state.best, theta), state._replace(
            phi=jax.tree.map(lambda leaf: jnp.where(starts, 0.0, leaf), state.phi),
            before=_where(goes_back, state.best, state.before),
            bias=jnp.where(starts, 0.0, state.bias),
            damping=jnp.where(starts, damping, state.damping),
            trend=trend.forgiven(goes_back),
            is_settling=is_settling,
            heat=jnp.where(is_astray, self.rule.cooling, 1.0) * state.heat,
        )

    def _momentum(self, state: AutoState) -> Float[Array, ""]:
        forgetting = schedule.at(self.forgetting, state.step)
        return jnp.clip(
            1 - forgetting / (state.age + self.rule.youngest), 0.0, self.rule.most_momentum
        )

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
        moved = used * jnp.clip(excess**0.5, 1 / self.rule.damping_factor, self.rule.damping_factor)
        return jnp.clip(moved, schedule.at(self.least_damping, step), self.rule.highest_damping)

    def _set_back(self, state: AutoState, theta: Theta) -> AutoState:
        """Where a step is not taken or taken back: more damping, and no direction."""
        return state._replace(
            phi=jax.tree.map(jnp.zeros_like, state.phi),
            before=theta,
            step=state.step + 1,
            bias=jnp.zeros_like(state.bias),
            damping=jnp.minimum(self.rule.setback * state.damping, self.rule.highest_damping),
            age=0.5 * state.age,
        )


def _where(condition: Bool[Array, ""], tree: Any, other: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), tree, other)
