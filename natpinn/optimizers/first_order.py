"""SGD, Adam and every other optax method that needs the gradient alone."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from .. import schedule
from ..errors import InputError
from ..least_squares.objective import LeastSquares
from ..models.theta import Theta
from ..schedule import Number
from .base import Optimizer, StepInfo, norm


class FirstOrderState(NamedTuple):
    step: Int[Array, ""]
    inner: optax.OptState


class FirstOrder(Optimizer[FirstOrderState]):
    """An optax method that needs the gradient or the loss, θ ← θ + method(settings).update(∇L).

    **Arguments:**

    - `method`: a function of optax that returns a gradient transformation.
    - `settings`: the arguments of that function by name: numbers or schedules. Flags, names, None
      and masks are passed on as they are.

    **Raises:** `InputError` for a method that is no function, and for settings without names.

        import optax

        import natpinn

        optimizer = natpinn.FirstOrder(optax.lion, {"learning_rate": 1e-3})
    """

    method: Callable[..., optax.GradientTransformation] = eqx.field(static=True)
    settings: Mapping[str, Any]

    def __check_init__(self):
        if not callable(self.method):
            raise InputError(f"a method is a function of optax, as optax.lion, got {self.method!r}")
        if not isinstance(self.settings, Mapping):
            raise InputError(
                f"settings have names, as in {{'learning_rate': 1e-3}}, got {self.settings!r}"
            )

    def init(self, theta: Theta) -> FirstOrderState:
        step = jnp.array(0)
        return FirstOrderState(step, self._transformation(step).init(theta))

    def step(
        self, objective: LeastSquares, theta: Theta, state: FirstOrderState, *, key: PRNGKeyArray
    ) -> tuple[Theta, FirstOrderState, StepInfo]:
        loss, gradient = jax.value_and_grad(objective.loss)(theta)
        method = optax.with_extra_args_support(self._transformation(state.step))
        known = {"value": loss, "grad": gradient, "value_fn": objective.loss}
        update, inner = method.update(gradient, state.inner, theta, **known)
        details = {"update_norm": norm(update)}
        if "learning_rate" in self.settings:
            details["step_size"] = schedule.at(self.settings["learning_rate"], state.step)
        info = StepInfo(loss, details)
        return optax.apply_updates(theta, update), FirstOrderState(state.step + 1, inner), info

    def _transformation(self, step: Int[Array, ""]) -> optax.GradientTransformation:
        return self.method(**{k: _at(k, v, step) for k, v in self.settings.items()})


def _at(
    name: str, value: Number | Callable[..., PyTree] | str | None, step: Int[Array, ""]
) -> Float[Array, ""] | Callable[..., PyTree] | str | bool | None:
    """A number of this step; what is no number and no schedule stays as it is."""
    if value is None or isinstance(value, bool | str):
        return value
    if callable(value) and name.endswith(("mask", "fn")):
        return value
    return schedule.at(value, step)
