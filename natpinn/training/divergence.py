"""Why a run diverged, in words."""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from ..domains.base import Points
from ..parallel.devices import on_this_process, replicate
from .steps import Batches, Outcome, TrainState

RARE = 0.1  # share of unsound points in a batch below which a smaller batch may have none


def explain_divergence(batches: Batches, state: TrainState, outcome: Outcome) -> str:
    """Why a run diverged, and what to try."""
    count, step = int(state.events.rejected_in_a_row), int(state.step)
    what = f"{count} steps in a row were rejected, up to step {step}: " if count else ""
    advice = "try a larger damping or a smaller learning rate"
    if count and math.isfinite(float(outcome.info.loss)):
        return f"{what}the loss is finite, but not after a step; {advice}"
    # A rejected step leaves the parameters, so the state before it gives its batch again.
    before = state.events._replace(rejected=state.events.rejected - 1)
    seen = state._replace(step=state.step - 1, events=before) if count else state
    for name, found in _unsound_points(batches, seen).items():
        if found.unsound:
            what += (
                f"the residual of {name!r} is not finite at {found.unsound} of {found.points} "
                f"points of a batch"
            )
            if found.unsound == found.points:
                return f"{what}; {advice}"
            rare = ", or take fewer points per step" if found.is_rare else ""
            names = batches.objective.names
            where = ", ".join(f"{n} = {x:g}" for n, x in zip(names, found.first, strict=True))
            return f"{what}, as at {where}: make it finite there{rare}"
    return f"{what}the loss or the error is not finite; {advice}"


class UnsoundPoints(NamedTuple):
    """Where in a batch the residual of one condition is not finite."""

    unsound: int  # points
    points: int
    first: list[float]  # of the unsound points, if there are any

    @property
    def is_rare(self) -> bool:
        return self.unsound < RARE * self.points


def _unsound_points(batches: Batches, state: TrainState) -> dict[str, UnsoundPoints]:
    """What is found for each condition, on the batch of the coming step."""
    plan = batches.objective.plan

    @eqx.filter_jit
    def compute(
        batches: Batches, state: TrainState
    ) -> tuple[dict[str, Points], dict[str, Float[Array, " n"]]]:
        batch, _ = batches.at(state)
        return replicate((batch.points, batch.residuals(state.theta)), plan)

    points, residuals = on_this_process(compute(batches, state))
    found = {}
    for name, rows in residuals.items():
        where = np.asarray(jax.tree.leaves(points[name])[0])
        by_point = np.asarray(rows).reshape(plan.padded(len(where)), -1)[: len(where)]
        is_bad = ~np.isfinite(by_point).all(axis=1)
        first = where[int(np.argmax(is_bad))]
        found[name] = UnsoundPoints(int(is_bad.sum()), len(where), first.round(4).tolist())
    return found
