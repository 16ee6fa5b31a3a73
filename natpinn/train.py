"""The one training loop, for every optimizer."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Array, Float, PRNGKeyArray

from . import memory
from .diagnostics import Tracking
from .errors import InputError
from .models import Theta
from .objective import LeastSquares
from .optimizers import Optimizer
from .plan import on_this_process, place, replicate
from .signals import Interrupts
from .steps import (
    Batches,
    Outcome,
    TrainState,
    Work,
    advance,
    all_finite,
    copied,
    start,
    use_compilation_cache,
)

Status = Literal["finished", "interrupted", "diverged"]
Number = TypeVar("Number", bool, int, float)

EVALUATION_GROWTH = 1.05  # each evaluation comes 5 % more steps after the start than the last
RARE = 0.1  # share of a batch at which a residual is not finite, so that another batch may do
SECONDS_PER_CALL = 0.25  # long enough that Python never shows up, short enough to watch


class Evaluation(Protocol):
    """θ ↦ numbers that say how good it is; the one named `criterion` decides which is best."""

    @property
    def criterion(self) -> str: ...

    def __call__(self, theta: Theta) -> dict[str, Float[Array, ""]]: ...


class Snapshot(NamedTuple):
    """A run at one moment: all that is needed to go on as if it had never stopped.

    Points and schedules are functions of the key and the step, which are in the state. The best
    parameters are those of the evaluations that do not depend on where a run was stopped.
    """

    state: TrainState
    best_theta: Theta
    best: np.ndarray  # the criterion of the best parameters
    seconds: np.ndarray  # of training alone: no compilation, no evaluation
    compile_seconds: np.ndarray
    tracking_seconds: np.ndarray  # not counted as training


@dataclass(frozen=True)
class Progress:
    """Where a run stands; `evaluated` says whether `metrics` are of this very step.

    The arrays of `snapshot` last until the next step: copy what is to be kept.
    """

    step: int
    seconds: float
    metrics: dict[str, float]
    evaluated: bool
    criterion: str
    steps: int | None
    budget: float | None
    snapshot: Snapshot

    @property
    def state(self) -> TrainState:
        return self.snapshot.state


Callback = Callable[[Progress], Any]  # returning True ends the run


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    snapshot: Snapshot
    best_theta: Theta
    history: list[dict[str, float]]
    status: Status
    message: str

    @property
    def state(self) -> TrainState:
        return self.snapshot.state

    @property
    def seconds(self) -> float:
        return float(self.snapshot.seconds)

    @property
    def compile_seconds(self) -> float:
        return float(self.snapshot.compile_seconds)

    @property
    def tracking_seconds(self) -> float:
        return float(self.snapshot.tracking_seconds)


def train(
    objective: LeastSquares,
    theta: Theta,
    optimizer: Optimizer,
    evaluation: Evaluation,
    *,
    key: PRNGKeyArray,
    steps: int | None = None,
    budget: float | None = None,
    steps_per_batch: int = 1,
    callbacks: Sequence[Callback] = (),
    resume: Snapshot | None = None,
    history: Sequence[dict[str, float]] = (),
    tracking: Tracking | None = None,
) -> TrainResult:
    """Train until `steps` are taken, `budget` seconds are spent or a callback returns True.

    Points are drawn anew every so many `steps_per_batch`. A run that is resumed goes on from its
    snapshot and history; its limits count from its start.
    """
    check_limits(steps, budget)
    check_tracking(tracking, optimizer)
    if not bool(jax.jit(all_finite)(theta)):
        raise InputError("the model's parameters are not finite before training: mend its start")
    use_compilation_cache()

    plan, criterion = objective.plan, evaluation.criterion
    snapshot = begin(optimizer, theta, key) if resume is None else _own(resume)
    batches = Batches(objective, at_least_one("steps_per_batch", steps_per_batch))
    optimizer, batches, evaluation, state, best_theta = place(
        (optimizer, batches, evaluation, snapshot.state, snapshot.best_theta), plan
    )
    best, seconds = float(snapshot.best), float(snapshot.seconds)
    compile_seconds = float(snapshot.compile_seconds)
    tracking_seconds = float(snapshot.tracking_seconds)
    history = list(history)

    def take(count: int, state: TrainState) -> tuple[TrainState, Outcome]:
        timed = optimizer.until(horizon(step, seconds, steps, budget))
        timed, counted = place((timed, jnp.array(count)), plan)
        return advance(Work(timed, batches, counted), state)

    def evaluate(outcome: Outcome | None) -> None:
        nonlocal best, best_theta
        record = {"step": step, "seconds": seconds, **_measure(batches, evaluation, state)}
        if outcome is not None:
            record |= {name: float(value) for name, value in outcome.info.details.items()}
            record |= _event_counts(state)
            record |= track(record)
        history.append(record)
        if is_scheduled(step) and is_better(record):
            best_theta, best = copied(state.theta), _or_infinity(record[criterion])

    def track(record: dict[str, float]) -> dict[str, float]:
        nonlocal tracking_seconds
        if tracking is None or len(history) % tracking.every:
            return {}
        started = time.perf_counter()
        found = tracking(batches, state, record["damping"])
        tracking_seconds += time.perf_counter() - started
        return found

    def is_better(record: dict[str, float]) -> bool:
        return record[criterion] < best or best == math.inf  # something is better than nothing

    def now() -> Snapshot:
        numbers = map(np.asarray, (best, seconds, compile_seconds, tracking_seconds))
        return Snapshot(state, best_theta, *numbers)

    def report(evaluated: bool) -> bool:
        """Whether a callback or a signal ends the run."""
        nonlocal status, message
        progress = Progress(step, seconds, history[-1], evaluated, criterion, steps, budget, now())
        try:
            answers = [callback(progress) for callback in callbacks]  # all of them, then decide
        except KeyboardInterrupt:
            if interrupts.received:
                raise  # the second one
            status, message, answers = "interrupted", f"stopped after {step} steps", [True]
        return _as_first_process(any(answers))

    status: Status = "finished"
    message = ""
    step = int(state.step)
    seconds_per_step = math.inf
    with Interrupts() as interrupts:
        started = time.perf_counter()
        state, outcome = jax.block_until_ready(take(0, state))  # compiles only
        next_evaluation = evaluation_after(step)
        done = is_over(step, seconds, steps, budget)  # killed while its results were written
        evaluated = not history or (done and history[-1]["step"] < step)
        if evaluated:
            evaluate(None)
        compile_seconds += time.perf_counter() - started
        memory.release()

        done = report(evaluated) or done
        while not done:
            limits = [next_evaluation - step, SECONDS_PER_CALL / seconds_per_step]
            limits += [] if steps is None else [steps - step]
            limits += [] if budget is None else [(budget - seconds) / seconds_per_step]
            count = max(1, int(min(limits)))

            started = time.perf_counter()
            state, outcome = jax.block_until_ready(take(count, state))
            elapsed = _as_first_process(time.perf_counter() - started)
            step, seconds = step + int(outcome.taken), seconds + elapsed
            seconds_per_step = elapsed / max(1, int(outcome.taken))

            is_out = is_over(step, seconds, steps, budget)
            if bool(outcome.is_stuck) or (is_out and int(state.events.rejected) == step):
                status, message = "diverged", _divergence(batches, state, outcome)
            elif not is_out and _as_first_process(interrupts.received):
                status, message = "interrupted", f"stopped by a signal after {step} steps"
            done = is_out or status != "finished"
            evaluated = done or step >= next_evaluation
            if evaluated:
                next_evaluation = evaluation_after(step)
                evaluate(outcome)
            if is_out and math.isfinite(best) and not math.isfinite(history[-1][criterion]):
                status, message = "diverged", _divergence(batches, state, outcome)
            done = report(evaluated) or done
            if done and not evaluated:  # a callback ends the run here
                evaluate(outcome)
                report(True)
    snapshot = on_this_process(now())
    last_is_best = not is_scheduled(step) and is_better(history[-1])
    best_theta = snapshot.state.theta if last_is_best else snapshot.best_theta
    return TrainResult(snapshot, best_theta, history, status, message)


def begin(optimizer: Optimizer, theta: Theta, key: PRNGKeyArray) -> Snapshot:
    """A run before its first step."""
    nothing = np.asarray(0.0)
    best = np.asarray(math.inf)
    return Snapshot(start(optimizer, theta, key), copied(theta), best, *3 * [nothing])


def evaluation_after(step: int) -> int:
    """The first evaluation after a step: at steps that do not depend on where a run was stopped."""
    next_step = 1
    while next_step <= step:
        next_step = max(next_step + 1, math.ceil(next_step * EVALUATION_GROWTH))
    return next_step


def is_scheduled(step: int) -> bool:
    """Whether a run is evaluated at a step wherever it stops."""
    return step == 0 or evaluation_after(step - 1) == step


def check_limits(steps: int | None, budget: float | None, stop_at: float | None = None) -> None:
    """A run ends."""
    if steps is None and budget is None:
        raise InputError("say when to stop: give a number of steps, a budget in seconds, or both")
    if steps is not None:
        at_least_one("steps", steps)
    if budget is not None and not budget > 0:
        raise InputError(f"budget must be a positive number of seconds, got {budget}")
    if stop_at is not None and not stop_at > 0:
        raise InputError(f"stop_at must be a positive error, got {stop_at}")


def check_tracking(tracking: Tracking | None, optimizer: Optimizer) -> None:
    if tracking is not None and not hasattr(optimizer, "damping"):
        raise InputError("only optimizers with a damping have what can be tracked, as engd_w has")


def at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise InputError(f"{name} must be at least 1, got {value}")
    return value


def horizon(step: int, seconds: float, steps: int | None, budget: float | None) -> float:
    """How many steps a run will have: those it is given, or as many as its speed so far allows."""
    by_time = math.inf if budget is None or seconds == 0 else step * budget / seconds
    return min(math.inf if steps is None else steps, by_time)


def is_over(step: int, seconds: float, steps: int | None, budget: float | None) -> bool:
    """Whether a limit is reached."""
    return (steps is not None and step >= steps) or (budget is not None and seconds >= budget)


@eqx.filter_jit
def _metrics(
    batches: Batches, evaluation: Evaluation, state: TrainState
) -> dict[str, Float[Array, ""]]:
    """The loss on the batch that the coming step will see: not fitted yet, if it is a new one."""
    batch, _ = batches.at(state)
    losses = batch.losses(state.theta)
    parts = {f"loss_{name}": loss for name, loss in losses.items()}
    return {"loss": sum(losses.values(), jnp.zeros(())), **parts, **evaluation(state.theta)}


def _measure(batches: Batches, evaluation: Evaluation, state: TrainState) -> dict[str, float]:
    """The metrics as numbers: the loss, its parts in the order of the conditions, the rest."""
    metrics = {name: float(v) for name, v in _metrics(batches, evaluation, state).items()}
    first = ["loss", *(f"loss_{name}" for name in batches.objective.conditions)]
    return {name: metrics.pop(name) for name in first} | metrics


def _event_counts(state: TrainState) -> dict[str, float]:
    return {
        "rejected_steps": int(state.events.rejected),
        "recovered_steps": int(state.events.recovered),
    }


def _divergence(batches: Batches, state: TrainState, outcome: Outcome) -> str:
    """What is wrong where a run is stuck, and what to try."""
    count, step = int(state.events.rejected_in_a_row), int(state.step)
    what = f"{count} steps in a row were rejected, up to step {step}: " if count else ""
    advice = "try a larger damping or a smaller learning rate"
    if count and math.isfinite(float(outcome.info.loss)):
        return f"{what}the loss is finite, but no step along its direction is; {advice}"
    before = state.events._replace(rejected=state.events.rejected - 1)
    seen = state._replace(step=state.step - 1, events=before) if count else state
    for name, (bad, n, point) in _unsound_points(batches, seen).items():
        if bad:
            what += f"the residual of {name!r} is not finite at {bad} of {n} points of a batch"
            if bad == n:
                return f"{what}; {advice}"
            rare = ", or take fewer points per step" if bad < RARE * n else ""
            return f"{what}, as at {point}: mend it there{rare}"
    return f"{what}the loss or the error is not finite; {advice}"


def _unsound_points(batches: Batches, state: TrainState) -> dict[str, tuple[int, int, list[float]]]:
    """Where the residual of each condition is not finite: how often, of how many, the first."""
    plan = batches.objective.plan

    @eqx.filter_jit
    def compute(batches: Batches, state: TrainState) -> tuple[Any, Any]:
        batch, _ = batches.at(state)
        return replicate((batch.points, batch.residuals(state.theta)), plan)

    points, residuals = on_this_process(compute(batches, state))
    found = {}
    for name, rows in residuals.items():
        where = np.asarray(jax.tree.leaves(points[name])[0])
        by_point = np.asarray(rows).reshape(plan.padded(len(where)), -1)[: len(where)]
        is_bad = ~np.isfinite(by_point).all(axis=1)
        first = where[int(np.argmax(is_bad))]
        found[name] = (int(is_bad.sum()), len(where), first.round(4).tolist())
    return found


def _own(snapshot: Snapshot) -> Snapshot:
    """The same in arrays that steps may reuse."""
    return snapshot._replace(state=copied(snapshot.state), best_theta=copied(snapshot.best_theta))


def _as_first_process(value: Number) -> Number:
    """The value that the first of several processes has: clocks differ, and steps must not."""
    if jax.process_count() == 1:
        return value
    return type(value)(multihost_utils.broadcast_one_to_all(np.asarray(value)))


def _or_infinity(value: float) -> float:
    return value if math.isfinite(value) else math.inf
