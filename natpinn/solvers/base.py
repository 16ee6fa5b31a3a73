"""Damped linear least squares: the contract of every solver."""

from abc import abstractmethod
from typing import Generic, NamedTuple, TypeVar

import equinox as eqx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

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
    def effective_dimension(self, damping: Float[Array, ""]) -> Float[Array, ""]:
        """tr(K (K + λI)⁻¹), how many eigenvalues are above the damping, smoothly counted."""


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
    def system_bytes(self, rows: int, parameters: int) -> int:
        """The memory of the matrices that a solve has at the same time."""

    def is_primal(self, rows: int, parameters: int) -> bool:
        """Whether it forms the Gramian in place of the kernel."""
        return False

    def sketch_columns(self, rows: int) -> int | None:
        """With how many vectors it multiplies the kernel, if it never forms it."""
        return None


def smooth_count(eigenvalues: Float[Array, " n"], damping: Float[Array, ""]) -> Float[Array, ""]:
    """Σ λᵢ/(λᵢ + λ), where round-off below zero counts as zero."""
    positive = eigenvalues.clip(0)
    return (positive / (positive + damping)).sum()
