"""What is measured of a run, and at which steps."""

import math
from typing import Protocol

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..models.theta import Theta
from .steps import Batches, TrainState

EVALUATION_GROWTH = 1.05  # each evaluation comes 5 % more steps after the start than the last


class Evaluation(Protocol):
    """θ ↦ numbers that say how good it is; the one named `criterion` decides which is best."""

    @property
    def criterion(self) -> str: ...

    def __call__(self, theta: Theta) -> dict[str, Float[Array, ""]]: ...


def evaluation_after(step: int) -> int:
    """The first scheduled evaluation after a step; the schedule is the same for every run."""
    next_step = 1
    while next_step <= step:
        next_step = max(next_step + 1, math.ceil(next_step * EVALUATION_GROWTH))
    return next_step


def is_scheduled(step: int) -> bool:
    """Whether the evaluation schedule contains this step; it does not depend on interruptions."""
    return step == 0 or evaluation_after(step - 1) == step


def measure(batches: Batches, evaluation: Evaluation, state: TrainState) -> dict[str, float]:
    """The metrics as numbers: the loss, its parts in the order of the conditions, the rest."""
    found = {name: float(v) for name, v in metrics(batches, evaluation, state).items()}
    first = ["loss", *(f"loss_{name}" for name in batches.objective.conditions)]
    return {name: found.pop(name) for name in first} | found


@eqx.filter_jit
def metrics(
    batches: Batches, evaluation: Evaluation, state: TrainState
) -> dict[str, Float[Array, ""]]:
    """The loss on the batch of the coming step, which no step has fitted yet if it is a new one."""
    batch, _ = batches.at(state)
    losses = batch.losses(state.theta)
    parts = {f"loss_{name}": loss for name, loss in losses.items()}
    return {"loss": sum(losses.values(), jnp.zeros(())), **parts, **evaluation(state.theta)}
