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

    Points and schedules are functions of the key and the step, which are in the state. The best
    parameters are those of scheduled evaluations, so they do not depend on interruptions.
    """

    state: TrainState
    best_theta: Theta
    best: np.ndarray  # the criterion of the best parameters
    seconds: np.ndarray  # of training alone: no compilation, no evaluation
    compile_seconds: np.ndarray
    tracking_seconds: np.ndarray  # not counted as training


def begin(optimizer: Optimizer, theta: Theta, key: PRNGKeyArray) -> Snapshot:
    """A run before its first step."""
    zero = np.asarray(0.0)
    best = np.asarray(math.inf)
    return Snapshot(start(optimizer, theta, key), copied(theta), best, zero, zero, zero)


def owned(snapshot: Snapshot) -> Snapshot:
    """The same in arrays of its own, since steps reuse the memory of a state."""
    return snapshot._replace(state=copied(snapshot.state), best_theta=copied(snapshot.best_theta))
