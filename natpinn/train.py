"""The one training loop, for every optimizer."""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from . import memory
from .errors import InputError
from .models import Theta
from .objective import LeastSquares
from .optimizers import Optimizer, StepInfo
from .plan import on_this_process, place, replicate

Status = Literal["finished", "interrupted", "diverged"]
Number = TypeVar("Number", bool, float)

EVALUATION_GROWTH = 1.05  # each evaluation comes 5 % more steps after the start than the last
SECONDS_PER_CALL = 0.25  # long enough that Python never shows up, short enough to watch


class TrainState(NamedTuple):
    """All that changes during training."""

    theta: Theta
    optimizer: Any
    key: PRNGKeyArray
    step: Int[Array, ""]


class Evaluation(Protocol):
    """θ ↦ numbers that say how good it is; the one named `criterion` decides which is best."""

    @property
    def criterion(self) -> str: ...

    def __call__(self, theta: Theta) -> dict[str, Float[Array, ""]]: ...


@dataclass(frozen=True)
class Progress:
    """Where a run stands; `evaluated` says whether `metrics` are of this very step.

    The arrays of `state` last until the next step: copy what is to be kept.
    """

    step: int
    seconds: float  # of training alone: no compilation, no evaluation
    compile_seconds: float
    metrics: dict[str, float]
    evaluated: bool
    criterion: str
    steps: int | None
    budget: float | None
    state: TrainState


Callback = Callable[[Progress], Any]  # returning True ends the run


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    state: TrainState
    best_theta: Theta
    history: list[dict[str, float]]
    seconds: float
    compile_seconds: float
    status: Status
    message: str


def train(
    objective: LeastSquares,
    theta: Theta,
    optimizer: Optimizer,
    evaluation: Evaluation,
    *,
    key: PRNGKeyArray,
    steps: int | None = None,
    budget: float | None = None,
    callbacks: Sequence[Callback] = (),
) -> TrainResult:
    """Train until `steps` are taken, `budget` seconds are spent or a callback returns True."""
    check_limits(steps, budget)
    use_compilation_cache()

    plan = objective.plan
    optimizer, objective, evaluation, state = place(
        (optimizer, objective, evaluation, start(optimizer, theta, key)), plan
    )

    def take(count: int, state: TrainState) -> tuple[TrainState, Outcome]:
        return advance(Work(optimizer, objective, place(jnp.array(count), plan)), state)

    started = time.perf_counter()
    state, _ = jax.block_until_ready(take(0, state))  # compiles only
    metrics = _measure(objective, evaluation, state)
    compile_seconds = time.perf_counter() - started
    memory.release()

    seconds, step, next_evaluation = 0.0, 0, 1
    seconds_per_step = math.inf
    record, criterion = {"step": 0, "seconds": 0.0, **metrics}, evaluation.criterion
    history, best_theta, best = [record], _copy(state.theta), _or_infinity(record[criterion])
    status: Status = "finished"
    message = ""

    def report(evaluated: bool) -> bool:
        progress = Progress(
            step=step,
            seconds=seconds,
            compile_seconds=compile_seconds,
            metrics=record,
            evaluated=evaluated,
            criterion=criterion,
            steps=steps,
            budget=budget,
            state=state,
        )
        answers = [callback(progress) for callback in callbacks]  # all of them, then decide
        return _as_first_process(any(answers))

    try:
        done = report(evaluated=True)
        while not done:
            limits = [next_evaluation - step, SECONDS_PER_CALL / seconds_per_step]
            limits += [] if steps is None else [steps - step]
            limits += [] if budget is None else [(budget - seconds) / seconds_per_step]
            count = max(1, int(min(limits)))

            started = time.perf_counter()
            state, outcome = jax.block_until_ready(take(count, state))
            elapsed = _as_first_process(time.perf_counter() - started)
            step, seconds = step + int(outcome.taken), seconds + elapsed
            if not outcome.is_sound:
                status, message = "diverged", _divergence(float(outcome.info.loss), step)
                break
            seconds_per_step = elapsed / count

            out_of_steps = steps is not None and step >= steps
            out_of_time = budget is not None and seconds >= budget
            done = out_of_steps or out_of_time
            evaluated = done or step >= next_evaluation
            if evaluated:
                next_evaluation = max(step + 1, math.ceil(step * EVALUATION_GROWTH))
                metrics = _measure(objective, evaluation, state)
                details = {name: float(value) for name, value in outcome.info.details.items()}
                record = {"step": step, "seconds": seconds, **metrics, **details}
                history.append(record)
                if not math.isfinite(metrics["loss"]):
                    status, message = "diverged", _divergence(metrics["loss"], step)
                    break
                if metrics[criterion] < best:
                    best_theta, best = _copy(state.theta), metrics[criterion]
            done = report(evaluated) or done
    except KeyboardInterrupt:
        status, message = "interrupted", f"stopped by the user after {step} steps"
    state, best_theta = on_this_process((state, best_theta))
    return TrainResult(state, best_theta, history, seconds, compile_seconds, status, message)


def start(optimizer: Optimizer, theta: Theta, key: PRNGKeyArray) -> TrainState:
    """The state before the first step, in arrays of its own."""
    return _copy(TrainState(theta, optimizer.init(theta), key, jnp.array(0)))


class Work(NamedTuple):
    """What many steps have in common, and how many they are."""

    optimizer: Optimizer
    objective: LeastSquares
    steps: Int[Array, ""]


class Outcome(NamedTuple):
    """How some steps went."""

    info: StepInfo  # of the last one
    taken: Int[Array, ""]
    is_sound: Bool[Array, ""]


@eqx.filter_jit(donate="all-except-first")
def advance(work: Work, state: TrainState) -> tuple[TrainState, Outcome]:
    """Take a number of steps, each on fresh points, in the memory of the state that is given.

    Steps end early at a loss or at parameters that are not finite; that step is not taken.
    """
    optimizer, objective, steps = work

    def take_step(state: TrainState) -> tuple[TrainState, StepInfo]:
        batch, step_key = _batch(objective, state)
        theta, optimizer_state, info = optimizer.step(
            batch, state.theta, state.optimizer, key=step_key
        )
        theta, optimizer_state = replicate((theta, optimizer_state), objective.plan)
        return TrainState(theta, optimizer_state, state.key, state.step + 1), info

    def may_go_on(carry: tuple[TrainState, Outcome]) -> Array:
        _, outcome = carry
        return (outcome.taken < steps) & outcome.is_sound

    def body(carry: tuple[TrainState, Outcome]) -> tuple[TrainState, Outcome]:
        state, outcome = carry
        new, info = take_step(state)
        is_sound = jnp.isfinite(info.loss) & _all_finite(new.theta)
        new = jax.tree.map(lambda new, old: jnp.where(is_sound, new, old), new, state)
        return new, Outcome(info, outcome.taken + is_sound, is_sound)

    _, shape = jax.eval_shape(take_step, state)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
    unstarted = Outcome(nothing, jnp.array(0), jnp.array(True))
    return jax.lax.while_loop(may_go_on, body, (state, unstarted))


def check_limits(steps: int | None, budget: float | None, stop_at: float | None = None) -> None:
    """A run ends."""
    if steps is None and budget is None:
        raise InputError("say when to stop: give a number of steps, a budget in seconds, or both")
    if steps is not None and steps < 1:
        raise InputError(f"steps must be at least 1, got {steps}")
    if budget is not None and not budget > 0:
        raise InputError(f"budget must be a positive number of seconds, got {budget}")
    if stop_at is not None and not stop_at > 0:
        raise InputError(f"stop_at must be a positive error, got {stop_at}")


def use_compilation_cache() -> None:
    """Keep compiled programs on disk, unless the user has said where or that they should not be."""
    chosen = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if chosen is None and "NATPINN_NO_CACHE" not in os.environ:
        root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(root / "natpinn"))


@eqx.filter_jit
def _metrics(
    objective: LeastSquares, evaluation: Evaluation, state: TrainState
) -> dict[str, Float[Array, ""]]:
    """The loss on the batch that the coming step will see, and so has not fitted yet."""
    batch, _ = _batch(objective, state)
    losses = batch.losses(state.theta)
    parts = {f"loss_{name}": loss for name, loss in losses.items()}
    return {"loss": sum(losses.values(), jnp.zeros(())), **parts, **evaluation(state.theta)}


def _measure(
    objective: LeastSquares, evaluation: Evaluation, state: TrainState
) -> dict[str, float]:
    """The metrics as numbers: the loss, its parts in the order of the conditions, the rest."""
    metrics = {name: float(v) for name, v in _metrics(objective, evaluation, state).items()}
    first = ["loss", *(f"loss_{name}" for name in objective.conditions)]
    return {name: metrics.pop(name) for name in first} | metrics


def _batch(objective: LeastSquares, state: TrainState) -> tuple[LeastSquares, PRNGKeyArray]:
    """The batch of a step, and a key for the optimizer: functions of the step alone."""
    sample_key, step_key = jax.random.split(jax.random.fold_in(state.key, state.step))
    return objective.resample(sample_key), step_key


def _divergence(loss: float, step: int) -> str:
    return (
        f"the loss became {loss} at step {step}: the best parameters are kept; try a larger "
        f"damping or a smaller learning rate"
    )


def _copy(tree: Any) -> Any:
    """The same values in arrays of their own, since steps reuse the memory of a state.

    Types become strong: arrays made from Python numbers have weak ones, steps return strong ones,
    and one program for both needs one type.
    """
    return jax.tree.map(lambda leaf: jnp.array(leaf, dtype=leaf.dtype, copy=True), tree)


def _all_finite(theta: Theta) -> Bool[Array, ""]:
    return jnp.all(jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(theta)]))


def _as_first_process(value: Number) -> Number:
    """The value that the first of several processes has: clocks differ, and steps must not."""
    if jax.process_count() == 1:
        return value
    return type(value)(multihost_utils.broadcast_one_to_all(np.asarray(value)))


def _or_infinity(value: float) -> float:
    return value if math.isfinite(value) else math.inf
