"""What every optimizer is: a pure function from one batch to the next parameters."""

from abc import abstractmethod
from typing import Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..least_squares.footprint import Footprint
from ..least_squares.objective import LeastSquares
from ..models.theta import Theta

State = TypeVar("State")


class StepInfo(NamedTuple):
    """What an optimizer reports of one step.

    - `loss`: of the batch, before the step.
    - `details`: numbers for the records by name, as `step_size`, `damping` and `update_norm`.
    - `is_recovered`: whether the linear system could not be solved with the damping that was asked
      for, and was damped more.
    """

    loss: Float[Array, ""]  # before it
    details: dict[str, Float[Array, ""]]  # numbers for the records
    is_recovered: Bool[Array, ""] | bool = False  # its system could not be solved as it was


class Optimizer(eqx.Module, Generic[State]):
    """One step of descent on one batch: the contract of every optimizer.

    Steps are compiled, so there is no Python branch on the values of arrays. Settings are fields
    that never change; all that changes is in the state, a pytree of arrays. A subclass defines

    - `init(theta)`: the state before the first step.
    - `step(objective, theta, state, key=…)`: the next parameters, the next state and a `StepInfo`.
      A step with a loss or parameters that are not finite is rejected by the training loop.

    It may override `until`, where steps depend on the length of the run, `skip`, and `footprint`,
    from which the memory of a step is planned.

        import jax
        import natpinn

        class Descent(natpinn.Optimizer):
            rate: float = 1e-3

            def init(self, theta):
                return None

            def step(self, objective, theta, state, *, key):
                loss, gradient = jax.value_and_grad(objective.loss)(theta)
                theta = jax.tree.map(lambda t, g: t - self.rate * g, theta, gradient)
                return theta, state, natpinn.StepInfo(loss, {})

        natpinn.solve("poisson_2d", optimizer=Descent(), steps=3, progress=False)
    """

    @abstractmethod
    def init(self, theta: Theta) -> State:
        """The state before the first step."""

    @abstractmethod
    def step(
        self, objective: LeastSquares, theta: Theta, state: State, *, key: PRNGKeyArray
    ) -> tuple[Theta, State, StepInfo]:
        """The next parameters, the next state, and what the step has to report."""

    def until(self, horizon: float) -> "Optimizer[State]":
        """The same optimizer in a run of so many steps, if its steps depend on that."""
        return self

    def skip(self, state: State) -> State:
        """The state after a step that was rejected."""
        return state

    def footprint(self, rows: int, parameters: int) -> Footprint:
        """What a step needs beside its state, for so many rows and parameters."""
        return Footprint()


def dot(a: Theta, b: Theta) -> Float[Array, ""]:
    """The inner product over all leaves."""
    return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, a, b)), jnp.zeros(()))


def norm(theta: Theta) -> Float[Array, ""]:
    """The Euclidean norm over all leaves."""
    return jnp.sqrt(dot(theta, theta))
