"""L-BFGS: optax's two-loop recursion and zoom line search."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from .. import schedule
from ..least_squares.objective import LeastSquares
from ..models.theta import Theta
from .base import Optimizer, StepInfo, dot, norm

SAME_LOSS = 1e-9  # relative: two losses at the same parameters are then of the same batch


class LbfgsState(NamedTuple):
    memory: optax.ScaleByLBFGSState
    loss: Float[Array, ""]  # after the last step, on its batch


class Lbfgs(Optimizer[LbfgsState]):
    """L-BFGS: a quasi-Newton step from the last differences of parameters and of gradients.

    It wants the same batch for many steps. When the batch has changed, which shows in the loss, the
    last difference of gradients is taken on the new one, so that every pair belongs to one batch;
    older pairs stay. Where the resulting direction does not descend, the memory is emptied.

    **Arguments:**

    - `memory_size`: how many pairs of differences are kept. Default: 100.
    - `line_search_steps`: the most step sizes that are tried in a step. Default: 20.

    **Raises:** `InputError` for a number that is not whole from 1.

        import natpinn

        optimizer = natpinn.Lbfgs(memory_size=20)
    """

    memory_size: int = schedule.count("memory_size", 100)
    line_search_steps: int = schedule.count("line_search_steps", 20)

    def init(self, theta: Theta) -> LbfgsState:
        return LbfgsState(self._recursion.init(theta), jnp.array(0.0))

    def step(
        self, objective: LeastSquares, theta: Theta, state: LbfgsState, *, key: PRNGKeyArray
    ) -> tuple[Theta, LbfgsState, StepInfo]:
        loss, gradient = jax.value_and_grad(objective.loss)(theta)
        is_new = jnp.abs(loss - state.loss) > SAME_LOSS * jnp.abs(loss)
        memory = self._on_this_batch(objective, state.memory, is_new)
        direction, memory = self._recursion.update(gradient, memory, theta)
        descends = dot(gradient, direction) > 0  # false for NaN too
        short = 1 / jnp.maximum(norm(gradient), 1.0)
        direction = jax.tree.map(
            lambda d, g: jnp.where(descends, d, short * g), direction, gradient
        )
        memory = memory._replace(weights_memory=jnp.where(descends, memory.weights_memory, 0.0))

        search: Any = optax.scale_by_zoom_linesearch(self.line_search_steps)
        downhill = jax.tree.map(jnp.negative, direction)
        update, found = search.update(
            downhill,
            search.init(theta),
            theta,
            value=loss,
            grad=gradient,
            value_fn=objective.loss,
        )
        details = {
            "step_size": jnp.asarray(found.learning_rate, loss.dtype),
            "update_norm": norm(update),
            "line_search_steps": jnp.asarray(found.info.num_linesearch_steps, loss.dtype),
        }
        new_state = LbfgsState(memory, jnp.asarray(found.value, loss.dtype))
        return optax.apply_updates(theta, update), new_state, StepInfo(loss, details)

    @property
    def _recursion(self) -> Any:
        return optax.scale_by_lbfgs(self.memory_size)

    def _on_this_batch(
        self, objective: LeastSquares, memory: Any, is_new: Bool[Array, ""]
    ) -> optax.ScaleByLBFGSState:
        """The memory with the last gradient taken on this batch."""
        last = jax.lax.cond(
            is_new & (memory.count > 0),
            lambda: jax.grad(objective.loss)(memory.params),
            lambda: memory.updates,
        )
        return memory._replace(updates=last)
