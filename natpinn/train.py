"""The one training loop, for every optimizer."""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .errors import InputError
from .models import Theta
from .objective import LeastSquares
from .optimizers import Optimizer, StepInfo

Status = Literal["finished", "interrupted", "diverged"]

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
    """Where a run stands; `evaluated` says whether `metrics` are of this very step."""

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

    state = _strongly_typed(TrainState(theta, optimizer.init(theta), key, jnp.array(0)))
    started = time.perf_counter()
    jax.block_until_ready(advance(optimizer, objective, state, jnp.array(0)))  # compiles only
    metrics = _measure(objective, evaluation, state)
    compile_seconds = time.perf_counter() - started

    seconds, step, next_evaluation = 0.0, 0, 1
    seconds_per_step = math.inf
    record = {"step": 0, "seconds": 0.0, **metrics}
    history, best_theta, best = [record], theta, _or_infinity(metrics[evaluation.criterion])
    status: Status = "finished"
    message = ""

    def report(evaluated: bool) -> bool:
        progress = Progress(
            step=step,
            seconds=seconds,
            compile_seconds=compile_seconds,
            metrics=record,
            evaluated=evaluated,
            criterion=evaluation.criterion,
            steps=steps,
            budget=budget,
            state=state,
        )
        answers = [callback(progress) for callback in callbacks]  # all of them, then decide
        return any(answers)

    try:
        done = report(evaluated=True)
        while not done:
            limits = [next_evaluation - step, SECONDS_PER_CALL / seconds_per_step]
            limits += [] if steps is None else [steps - step]
            limits += [] if budget is None else [(budget - seconds) / seconds_per_step]
            count = max(1, int(min(limits)))

            started = time.perf_counter()
            new_state, info, taken = advance(optimizer, objective, state, jnp.array(count))
            jax.block_until_ready(new_state)
            elapsed = time.perf_counter() - started
            if not math.isfinite(info.loss):
                status = "diverged"
                message = _divergence(float(info.loss), step + int(taken))
                break
            previous, state = state, new_state
            step, seconds = step + count, seconds + elapsed
            seconds_per_step = elapsed / count

            out_of_steps = steps is not None and step >= steps
            out_of_time = budget is not None and seconds >= budget
            done = out_of_steps or out_of_time
            evaluated = done or step >= next_evaluation
            if evaluated:
                next_evaluation = max(step + 1, math.ceil(step * EVALUATION_GROWTH))
                metrics = _measure(objective, evaluation, state)
                details = {name: float(value) for name, value in info.details.items()}
                record = {"step": step, "seconds": seconds, **metrics, **details}
                history.append(record)
                if not math.isfinite(metrics["loss"]):
                    status, message = "diverged", _divergence(metrics["loss"], step)
                    state = previous
                    break
                if metrics[evaluation.criterion] < best:
                    best_theta, best = state.theta, metrics[evaluation.criterion]
            done = report(evaluated) or done
    except KeyboardInterrupt:
        status, message = "interrupted", f"stopped by the user after {step} steps"
    return TrainResult(state, best_theta, history, seconds, compile_seconds, status, message)


@eqx.filter_jit
def advance(
    optimizer: Optimizer, objective: LeastSquares, state: TrainState, steps: Int[Array, ""]
) -> tuple[TrainState, StepInfo, Int[Array, ""]]:
    """Take a number of steps, each on fresh points, or fewer if the loss stops being finite."""

    def take_step(state: TrainState) -> tuple[TrainState, StepInfo]:
        batch, step_key = _batch(objective, state)
        theta, optimizer_state, info = optimizer.step(
            batch, state.theta, state.optimizer, key=step_key
        )
        return TrainState(theta, optimizer_state, state.key, state.step + 1), info

    def may_go_on(carry: tuple[TrainState, StepInfo, Array]) -> Array:
        _, info, taken = carry
        return (taken < steps) & jnp.isfinite(info.loss)

    def body(carry: tuple[TrainState, StepInfo, Array]) -> tuple[TrainState, StepInfo, Array]:
        state, _, taken = carry
        return *take_step(state), taken + 1

    _, shape = jax.eval_shape(take_step, state)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
    return jax.lax.while_loop(may_go_on, body, (state, nothing, jnp.array(0)))


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


def _strongly_typed(state: TrainState) -> TrainState:
    """Arrays made from Python numbers have weak types, and steps return strong ones: one program
    for both needs one type."""
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), state)


def _or_infinity(value: float) -> float:
    return value if math.isfinite(value) else math.inf
