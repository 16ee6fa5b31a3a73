"""A run at one moment."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import PRNGKeyArray

from ..models.theta import Theta
from ..optimizers.base import Optimizer
from .steps import TrainState, copied, start


class Snapshot(NamedTuple):
    """A run at one moment: all that is needed to go on as if it had never stopped.

    - `state`: what changes from step to step; points and schedules are functions of its key and
      step.
    - `best_theta`: the parameters of the best scheduled evaluation, so that they do not depend on
      interruptions.
    - `best`: the criterion of those parameters, infinite before the first evaluation.
    - `seconds`: of training so far, without compilation, evaluation and tracking.
    - `compile_seconds`: until the first step, of all calls together.
    - `tracking_seconds`: that tracking the kernel's spectrum took.
    """

    state: TrainState
    best_theta: Theta
    best: np.ndarray
    seconds: np.ndarray
    compile_seconds: np.ndarray
    tracking_seconds: np.ndarray


def begin(optimizer: Optimizer, theta: Theta, key: PRNGKeyArray) -> Snapshot:
    """A run before its first step."""
    zero = np.asarray(0.0)
    best = np.asarray(math.inf)
    return Snapshot(start(optimizer, theta, key), copied(theta), best, zero, zero, zero)


def owned(snapshot: Snapshot) -> Snapshot:
    """The same in arrays of its own, since steps reuse the memory of a state."""
    return snapshot._replace(state=copied(snapshot.state), best_theta=copied(snapshot.best_theta))
