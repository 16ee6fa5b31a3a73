"""The exact solve, in whichever space is smaller."""

from jaxtyping import PRNGKeyArray

from ..least_squares.footprint import Footprint
from ..least_squares.linearization import Linearization
from ..models.theta import Theta, parameter_count
from .base import DampedSolver
from .dual import Dual, DualFactorization
from .primal import Primal, PrimalFactorization


class Smaller(DampedSolver[None]):
    """The exact solve in the smaller space: `Dual` with fewer rows than parameters, else `Primal`.

    It is the solver of `auto`.

        import natpinn

        optimizer = natpinn.spring(solver=natpinn.Smaller())
    """

    def init(self, theta: Theta) -> None:
        return None

    def factorize(
        self, linearization: Linearization, state: None, *, key: PRNGKeyArray
    ) -> tuple[DualFactorization | PrimalFactorization, None]:
        rows, parameters = len(linearization.residual), parameter_count(linearization.theta)
        system, _ = _of(rows, parameters).factorize(linearization, None, key=key)
        return system, None

    def footprint(self, rows: int, parameters: int) -> Footprint:
        return _of(rows, parameters).footprint(rows, parameters)


def _of(rows: int, parameters: int) -> Dual | Primal:
    return Dual() if rows <= parameters else Primal()
