"""SPRING that finds its damping, momentum and step size by itself."""

from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .. import schedule
from ..errors import InputError
from ..least_squares.footprint import Footprint
from ..least_squares.objective import LeastSquares
from ..models.theta import Theta
from ..precision import digits
from ..schedule import Schedule
from ..solvers.base import DampedSolver
from .base import Optimizer, StepInfo, norm
from .direction import direction
from .line_search import descend
from .trend import Trend

Tree = TypeVar("Tree")
SHORTEST_WARMING = 10.0  # steps


class AutoRule(eqx.Module):
    """The constants in the rule of `auto`, which nobody needs to set.

    What each is worth is measured by benchmarks/auto.py.

    **Arguments:**

    - `most_momentum`: the momentum never exceeds it. Default: 0.999.
    - `youngest`: an age that counts before the first step, with which momentum starts at one half.
      Default: 10.
    - `damping_factor`: the most that the damping is multiplied or divided by from one step to the
      next. Default: 4.
    - `highest_damping`: the most damping, relative to the trace of the kernel. Default: 100.
    - `setback`: what the damping is multiplied with where a step is taken back. Default: 10.
    - `jump`: a step is taken back if the loss of the next, fresh batch is so many times the average
      of those before. Default: 10.
    - `ageing_back`: by how much the age goes back at a step at which the loss rises. Default: 2.
    - `longest`: the most of the direction, before its bias correction, that a step takes. Default:
      1.
    - `fading`: the least that the direction is multiplied with after a step of the final phase
      whose linearization error was too large. Default: 0.5.
    - `astray`: the search has gone astray where the loss is so many times its lowest for long, or
      at the end of the search; it then goes back to the parameters of its lowest loss. Default:
      100.
    - `learned`: only a search whose lowest loss was so many times below its first one can go
      astray: before that, the lowest loss may be that of a solution which is zero almost
      everywhere. Default: 100.
    - `warming`: the share of the search so far, of ten steps at least, after which the logarithm of
      the heat has fallen by a factor of e. Default: 0.1.
    - `warm`: a loss counts for the lowest of a search where the heat is above this. Default: 0.8.
    - `cooling`: what `heat`, the factor of the wanted surprise, is multiplied with where a search
      goes astray before its end. Default: 0.2.
    - `shallow`: the damping never falls below it in a run of `few_steps` steps. Default: 1e-15,
      for which no accurate solve is needed.
    - `few_steps`, `many_steps`: between such numbers of steps the logarithm of the least damping
      falls in proportion, from that of `shallow` to that of Auto's `least_damping`. Default: 250
      and 600.
    - `stays`: once settling, a run whose estimated end moves away searches again only if less than
      this share of the search has passed by the new estimate. Default: 0.8.
    - `first_cycle`: the step at which a run whose end is not known has settled for the first time.
      Each cycle of searching and settling ends at twice as many steps as the one before. Default:
      1000.

        import natpinn

        rule = natpinn.AutoRule(cooling=0.5)
    """

    most_momentum: float = eqx.field(static=True, default=0.999)
    youngest: float = eqx.field(static=True, default=10.0)
    damping_factor: float = eqx.field(static=True, default=4.0)
    highest_damping: float = eqx.field(static=True, default=1e2)
    setback: float = eqx.field(static=True, default=10.0)
    jump: float = eqx.field(static=True, default=10.0)
    ageing_back: float = eqx.field(static=True, default=2.0)
    longest: float = eqx.field(static=True, default=1.0)
    fading: float = eqx.field(static=True, default=0.5)
    astray: float = eqx.field(static=True, default=100.0)
    learned: float = eqx.field(static=True, default=100.0)
    warming: float = eqx.field(static=True, default=0.1)
    warm: float = eqx.field(static=True, default=0.8)
    cooling: float = eqx.field(static=True, default=0.2)
    shallow: float = eqx.field(static=True, default=1e-15)
    few_steps: float = eqx.field(static=True, default=250.0)
    many_steps: float = eqx.field(static=True, default=600.0)
    stays: float = eqx.field(static=True, default=0.8)
    first_cycle: float = eqx.field(static=True, default=1000.0)


class AutoState(NamedTuple):
    phi: Theta  # the direction before bias correction
    before: Theta  # the parameters before the last step
    best: Theta  # the parameters of the search phase's lowest loss
    step: Int[Array, ""]
    bias: Float[Array, ""]
    damping: Float[Array, ""]  # relative to the trace of the kernel
    age: Float[Array, ""]
    trend: Trend
    is_settling: Bool[Array, ""]
    heat: Float[Array, ""]  # the factor of the wanted surprise in the search phase


class Auto(Optimizer[AutoState]):
    """SPRING whose damping, momentum and step size follow from the loss and the end of the run.

    The *surprise* of a step is its relative linearization error |r(θ + v) − (r + J v)| / |J v| on
    the batch of the step v: how far the residual after the step is from its linear prediction,
    relative to the predicted change. After each step the damping, which is relative to the trace of
    the kernel, is multiplied by √(surprise / wanted surprise). So it goes up where steps are less
    linear than wanted, and down where they are more.

    A run has two phases. In the search phase the wanted surprise is large: there is so little
    damping that the network learns fast while the loss stays high. In the final phase the run
    *settles*: it begins anew with much damping and without a previous direction, the wanted
    surprise is `calm`, and the step size falls to zero at the end. Damping cannot reduce what the
    previous direction adds to the linearization error, so in this phase that direction is shortened
    after a step whose error was too large. A run whose end is not known searches and settles in
    cycles, of which each has as many steps as all before it.

    A search can go *astray*, as with noisy data: its loss is a hundred times the lowest so far, and
    that was in the first half of the search. It then goes back to the parameters of the lowest
    loss, and the *heat*, a factor of the wanted surprise in the search phase which is 1 at first,
    falls to a fifth. From there it returns to 1, and losses of this time are not taken for the
    lowest. A search that ends with a hundred times its lowest loss, however recent, goes back too,
    and the final phase begins there.

    Momentum is 1 − c/(10 + age), as in Nesterov's method, with an age that counts steps and goes
    back while the loss rises on fresh batches. A step after which a fresh batch has ten times the
    average loss is taken back, and one that leads to no finite residual is not taken. Where a batch
    has no finite residual even at the parameters before the last step, that step is not taken back,
    and the step on this batch is rejected.

    Directions that are learned with little damping take many steps until the error that they leave
    is gone. So the damping never falls below 1e-15 in a run of 250 steps, and to `least_damping` in
    one of 600 steps or more only.

    **Arguments:** hyper-parameters are numbers, or functions of the step such as optax's schedules.
    Dampings are relative to the trace of the kernel.

    - `solver`: a solver that depends on one batch alone. Dampings below 1e-15 need `Accurate()`.
    - `learning_rate`: the share of the direction that a step takes until the final phase.
    - `surprise`: the wanted surprise in the search phase.
    - `damping`: at the start, and at least at the start of the final phase.
    - `least_damping`: the damping never falls below it, and in short runs not to it.
    - `forgetting`: c in the momentum.
    - `calm`: the wanted surprise in the final phase.
    - `settle_from`: the share of a run after which the final phase begins, from 0 and below 1.
    - `horizon`: how many steps the run will have, which the training loop sets. Default: infinity,
      for not known.
    - `rule`: the constants of the rule. Default: `AutoRule()`.

    **Raises:** `InputError` for a number out of its range, and for a solver that depends on the
    batches before.

        import natpinn

        optimizer = natpinn.Auto(
            natpinn.Accurate(),
            learning_rate=0.2,
            surprise=1.5,
            damping=1e-2,
            least_damping=1e-28,
            forgetting=5.0,
            calm=0.1,
            settle_from=0.75,
        )
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
            raise InputError(f"auto needs a solver, as Accurate() or Dual(), got {self.solver!r}")
        if self.solver.remembers:
            raise InputError(
                f"auto solves each batch by itself, and {self.solver!r} depends on the batches "
                f"before: take Accurate(), Dual(), Primal() or Nystrom(rank)"
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
        """The state after a step that was rejected: the end of the run is one step nearer."""
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

        trend = state.trend.follow(loss, state.age, state.heat > self.rule.warm)
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
            self._warmer(state),
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
        shown = jnp.where(is_lost, jnp.exp(state.trend.fast), loss)  # where the run continues
        return theta, new_state, StepInfo(shown, details, info.is_recovered)

    def _is_to_blame(
        self, objective: LeastSquares, state: AutoState, loss: Float[Array, ""]
    ) -> Bool[Array, ""]:
        """Whether the last step, and not the points of this batch, makes the loss not finite."""

        def was_sound() -> Bool[Array, ""]:
            return jnp.isfinite(objective.residual(state.before)).all()

        return jax.lax.cond(jnp.isfinite(loss), lambda: jnp.array(True), was_sound)

    def _enter_phase(self, theta: Theta, state: AutoState) -> tuple[Theta, AutoState]:
        """The parameters and the state at the beginning of a step, which may begin a phase.

        The final phase begins without a direction and with much damping, but keeps the age of the
        run. A search that went astray begins again in the same way, with less heat, at its lowest
        loss.
        """
        share = schedule.at(self.settle_from, state.step) * jnp.where(
            state.is_settling, self.rule.stays, 1
        )
        is_settling = state.step >= share * self._end(state.step)
        begins, ends = is_settling & ~state.is_settling, ~is_settling & state.is_settling
        trend = _where(ends, Trend.start(), state.trend)
        has_learned = trend.has_fallen(self.rule.learned)
        is_astray = ~is_settling & has_learned & trend.is_long_above(self.rule.astray)
        goes_back = is_astray | (begins & has_learned & trend.is_above(self.rule.astray))
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

    def _floor(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """The least damping of a run that has so many steps, or so many as it has taken so far."""
        rule, least = self.rule, schedule.at(self.least_damping, step) ** digits()
        shallow = rule.shallow * jnp.finfo(least.dtype).eps / jnp.finfo(jnp.float64).eps
        steps = jnp.where(jnp.isfinite(self.horizon), self.horizon, step)
        depth = (steps - rule.few_steps) / (rule.many_steps - rule.few_steps)
        return jnp.maximum(least, shallow * (least / shallow) ** jnp.clip(depth, 0, 1))

    def _warmer(self, state: AutoState) -> Float[Array, ""]:
        """The heat of the next step: it returns to 1, in proportion to the search so far."""
        steps = jnp.maximum(self.rule.warming * state.trend.steps, SHORTEST_WARMING)
        return state.heat ** (1 - 1 / steps)

    def _remaining(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """The factor of the step size: 1 in the search phase, then down to 0 at the end."""
        begin = schedule.at(self.settle_from, step)
        return jnp.clip((1 - step / self._end(step)) / (1 - begin), 0.0, 1.0)

    def _end(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """The step at which the run ends, or else the cycle of searching and settling."""
        first = self.rule.first_cycle
        doublings = jnp.ceil(jnp.log2(jnp.maximum(step + 1, first) / first))
        return jnp.where(jnp.isfinite(self.horizon), self.horizon, first * 2**doublings)

    def _wanted_surprise(self, state: AutoState) -> Float[Array, ""]:
        searching, settling = (schedule.at(s, state.step) for s in (self.surprise, self.calm))
        return jnp.where(state.is_settling, settling, state.heat * searching)

    def _next_damping(
        self, step: Int[Array, ""], used: Float[Array, ""], excess: Float[Array, ""]
    ) -> Float[Array, ""]:
        moved = used * jnp.clip(excess**0.5, 1 / self.rule.damping_factor, self.rule.damping_factor)
        return jnp.clip(moved, self._floor(step), self.rule.highest_damping)

    def _set_back(self, state: AutoState, theta: Theta) -> AutoState:
        """The state after a step that is not taken, or taken back: more damping, no direction."""
        return state._replace(
            phi=jax.tree.map(jnp.zeros_like, state.phi),
            before=theta,
            step=state.step + 1,
            bias=jnp.zeros_like(state.bias),
            damping=jnp.minimum(self.rule.setback * state.damping, self.rule.highest_damping),
            age=0.5 * state.age,
        )


def _where(condition: Bool[Array, ""], tree: Tree, other: Tree) -> Tree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), tree, other)
