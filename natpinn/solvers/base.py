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
    """What a solver reports of one solve.

    - `damping`: the damping that was used: more than was asked for where round-off made that
      necessary.
    - `is_recovered`: whether the system could not be solved with the damping that was asked for.
    - `details`: numbers for the records, by name.
    """

    damping: Float[Array, ""]  # the damping that was used
    is_recovered: Bool[Array, ""]  # whether the system could not be solved as it was
    details: Details = {}  # noqa: RUF012  # never changed


class Factorization(eqx.Module):
    """A damped system that is assembled once, and solved for several right-hand sides and dampings.

    `DampedSolver.factorize` returns it. A subclass defines

    - `solve(b, damping)`: x = argmin |J x − b|² + λ|x|², shaped as θ, and a `SolveInfo`.
    - `trace()`: the trace of the kernel, or of what stands for it; `auto` measures dampings by it.
    """

    @abstractmethod
    def solve(self, b: Float[Array, " n"], damping: Float[Array, ""]) -> tuple[Theta, SolveInfo]:
        """x = argmin |J x − b|² + λ|x|² for b of shape (n,) and a damping λ, and a `SolveInfo`."""

    @abstractmethod
    def trace(self) -> Float[Array, ""]:
        """The trace of the kernel, or of what stands for it: the unit of relative dampings."""


class DampedSolver(eqx.Module, Generic[State]):
    """Damped linear least squares, x = argmin |J x − b|² + λ|x|²: the contract of every solver.

    Steps are compiled, so `factorize` has no Python branch on the values of arrays. A subclass
    defines

    - `init(theta)`: the solver's state before the first step, a pytree of arrays or None.
    - `factorize(linearization, state, key=…)`: the system of one batch, as a `Factorization`, and
      the next state.
    - `footprint(rows, parameters)`: what has to be in memory, from which steps are planned.

    It may override `update(state, info)`, with which it learns from a solve, and `remembers`, which
    is true where a solve depends on the batches before.
    """

    @abstractmethod
    def init(self, theta: Theta) -> State:
        """The state before the first step."""

    @abstractmethod
    def factorize(
        self, linearization: Linearization, state: State, *, key: PRNGKeyArray
    ) -> tuple[Factorization, State]:
        """The system of one batch, ready to be solved, and the next state."""

    def update(self, state: State, info: SolveInfo) -> State:
        """The state after a solve, from which the solver may learn."""
        return state

    @abstractmethod
    def footprint(self, rows: int, parameters: int) -> Footprint:
        """What of the Jacobian a solve needs, and the bytes of its matrices."""

    @property
    def remembers(self) -> bool:
        """Whether a solve depends on the batches before."""
        return False
