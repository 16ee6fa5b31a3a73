"""SGD, Adam and every other optax method that needs the gradient alone."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PRNGKeyArray

from .. import schedule
from ..models import Theta
from ..objective import LeastSquares
from ..schedule import Schedule
from .base import Optimizer, StepInfo, norm


class FirstOrderState(NamedTuple):
    step: Int[Array, ""]
    inner: optax.OptState


class FirstOrder(Optimizer[FirstOrderState]):
    """θ ← θ + method(settings).update(∇L): any optax method, its settings numbers or schedules."""

    method: Callable[..., optax.GradientTransformation] = eqx.field(static=True)
    settings: Mapping[str, Schedule | float]

    def init(self, theta: Theta) -> FirstOrderState:
        step = jnp.array(0)
        return FirstOrderState(step, self._transformation(step).init(theta))

    def step(
        self, objective: LeastSquares, theta: Theta, state: FirstOrderState, *, key: PRNGKeyArray
    ) -> tuple[Theta, FirstOrderState, StepInfo]:
        loss, gradient = jax.value_and_grad(objective.loss)(theta)
        transformation = self._transformation(state.step)
        update, inner = transformation.update(gradient, state.inner, theta)
        details = {"update_norm": norm(update)}
        if "learning_rate" in self.settings:
            details["step_size"] = schedule.at(self.settings["learning_rate"], state.step)
        info = StepInfo(loss, details)
        return optax.apply_updates(theta, update), FirstOrderState(state.step + 1, inner), info

    def _transformation(self, step: Int[Array, ""]) -> optax.GradientTransformation:
        return self.method(**{k: schedule.at(v, step) for k, v in self.settings.items()})


def sgd(learning_rate: Any = 1e-3, momentum: Any = 0.0) -> FirstOrder:
    """Stochastic gradient descent with momentum."""
    settings = {
        "learning_rate": schedule.learning_rate(learning_rate),
        "momentum": schedule.momentum(momentum),
    }
    return FirstOrder(optax.sgd, settings)


def adam(learning_rate: Any = 1e-3) -> FirstOrder:
    """Adam with the usual moments."""
    return FirstOrder(optax.adam, {"learning_rate": schedule.learning_rate(learning_rate)})
