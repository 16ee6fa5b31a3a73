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
    """What a step has to say about itself."""

    loss: Float[Array, ""]  # before it
    details: dict[str, Float[Array, ""]]  # numbers for the records
    is_recovered: Bool[Array, ""] | bool = False  # its system could not be solved as it was


class Optimizer(eqx.Module, Generic[State]):
    """One step of descent on one batch; traced once, so no Python branch on values."""

    @abstractmethod
    def init(self, theta: Theta) -> State: ...

    @abstractmethod
    def step(
        self, objective: LeastSquares, theta: Theta, state: State, *, key: PRNGKeyArray
    ) -> tuple[Theta, State, StepInfo]: ...

    def until(self, horizon: float) -> "Optimizer[State]":
        """The same optimizer in a run that will have so many steps, if its steps depend on that."""
        return self

    def skip(self, state: State) -> State:
        """The state after a step that was rejected; nothing else is known about it."""
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
