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

from .. import memory
from ..checks import at_least_one
from ..errors import InputError
from ..least_squares.objective import LeastSquares
from ..models.theta import Theta
from ..optimizers.base import Optimizer
from ..parallel.devices import on_this_process, place
from .cache import use_compilation_cache
from .divergence import explain_divergence
from .limits import (
    check_limits,
    evaluation_after,
    horizon,
    is_over,
    is_scheduled,
)
from .signals import Interrupts
from .spectrum import Tracking
from .steps import Batches, Outcome, TrainState, Work, advance, all_finite, copied, start

Status = Literal["finished", "interrupted", "diverged"]
Number = TypeVar("Number", bool, int, float)
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
                status, message = "diverged", explain_divergence(batches, state, outcome)
            elif not is_out and _as_first_process(interrupts.received):
                status, message = "interrupted", f"stopped by a signal after {step} steps"
            done = is_out or status != "finished"
            evaluated = done or step >= next_evaluation
            if evaluated:
                next_evaluation = evaluation_after(step)
                evaluate(outcome)
            if is_out and math.isfinite(best) and not math.isfinite(history[-1][criterion]):
                status, message = "diverged", explain_divergence(batches, state, outcome)
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


def check_tracking(tracking: Tracking | None, optimizer: Optimizer) -> None:
    if tracking is not None and not hasattr(optimizer, "damping"):
        raise InputError("only optimizers with a damping have what can be tracked, as engd_w has")


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
