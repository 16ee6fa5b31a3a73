"""Damped linear least squares: the contract of every solver."""

from abc import abstractmethod
from typing import Generic, NamedTuple, TypeVar

import equinox as eqx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..least_squares.footprint import Footprint
from ..least_squares.linearization import Linearization
from ..models.theta import Theta

State = TypeVar("State")
Details = dict[str, Float[Array, ""]]  # for the records


class SolveInfo(NamedTuple):
    """What a solve has to say about itself."""

    damping: Float[Array, ""]  # the damping that was used
    is_recovered: Bool[Array, ""]  # whether the system could not be solved as it was
    details: Details = {}  # noqa: RUF012  # never changed


class Factorization(eqx.Module):
    """A system that is assembled once and solved for several right-hand sides and dampings."""

    @abstractmethod
    def solve(
        self, b: Float[Array, " n"], damping: Float[Array, ""]
    ) -> tuple[Theta, SolveInfo]: ...

    @abstractmethod
    def trace(self) -> Float[Array, ""]:
        """The trace of the kernel, or of what stands for it: a scale to measure dampings by."""


class DampedSolver(eqx.Module, Generic[State]):
    """x = argmin |J x − b|² + λ|x|²."""

    @abstractmethod
    def init(self, theta: Theta) -> State: ...

    @abstractmethod
    def factorize(
        self, linearization: Linearization, state: State, *, key: PRNGKeyArray
    ) -> tuple[Factorization, State]: ...

    def update(self, state: State, info: SolveInfo) -> State:
        """What the solver learns from a solve."""
        return state

    @abstractmethod
    def footprint(self, rows: int, parameters: int) -> Footprint:
        """What a solve needs, for so many rows and parameters."""

    @property
    def remembers(self) -> bool:
        """Whether a solve depends on the batches before."""
        return False
