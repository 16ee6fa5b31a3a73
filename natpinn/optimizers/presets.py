"""Methods by their names: compositions with the paper's defaults."""

from typing import Any

import optax

from .. import schedule
from ..errors import InputError
from ..solvers.dual import Dual
from ..solvers.nystrom import Nystrom
from ..solvers.primal import Primal
from ..solvers.smaller import Smaller
from .auto import (
    Auto,
)
from .first_order import FirstOrder
from .hessian_free import (
    HessianFree,
)
from .kfac import (
    Kfac,
    Quadratic,
)
from .lbfgs import Lbfgs
from .line_search import Armijo, Fixed, Grid, LineSearch, choose
from .natural_gradient import NaturalGradient

DEFAULT_LEARNING_RATE = 0.1
DEFAULT_NORM_CAP = 1e-3  # of SPRING with a fixed rate


def engd(
    damping: Any = 1e-6,
    learning_rate: Any = None,
    line_search: LineSearch | None = None,
    average: float = 0.0,
    start_at_identity: bool = True,
) -> NaturalGradient:
    """Energy natural gradient descent, dense Gramian; a line search unless a rate is given."""
    search = choose(learning_rate, line_search, default=Grid())
    return NaturalGradient(Primal(average, start_at_identity), search, damping)


def engd_w(
    damping: Any = 1e-6, learning_rate: Any = None, line_search: LineSearch | None = None
) -> NaturalGradient:
    """ENGD-W: the same steps through the kernel; a line search unless a rate is given."""
    return NaturalGradient(Dual(), choose(learning_rate, line_search, default=Grid()), damping)


def spring(
    damping: Any = 1e-6,
    momentum: Any = 0.9,
    learning_rate: Any = None,
    norm_cap: Any = DEFAULT_NORM_CAP,
    line_search: LineSearch | None = None,
) -> NaturalGradient:
    """SPRING: momentum in the regulariser; a rate of 0.1 and a cap, or a line search instead."""
    search = choose(learning_rate, line_search, default=Fixed(DEFAULT_LEARNING_RATE))
    if line_search is not None and norm_cap not in (None, DEFAULT_NORM_CAP):
        raise InputError(
            f"a line search takes the place of a norm cap, got both, with norm_cap={norm_cap!r}; "
            f"NaturalGradient(Dual(), line_search, damping, momentum, norm_cap) has both"
        )
    cap = norm_cap if line_search is None else None
    return NaturalGradient(Dual(), search, damping, momentum, cap)


def engd_w_nystrom(
    damping: Any = 1e-6,
    learning_rate: Any = None,
    line_search: LineSearch | None = None,
    rank: Any = 0.1,
    variant: str = "gpu",
) -> NaturalGradient:
    """ENGD-W with a sketch of the kernel; a line search unless a rate is given."""
    return _with_sketch(engd_w(damping, learning_rate, line_search), rank, variant)


def spring_nystrom(
    damping: Any = 1e-6,
    momentum: Any = 0.9,
    learning_rate: Any = None,
    norm_cap: Any = DEFAULT_NORM_CAP,
    line_search: LineSearch | None = None,
    rank: Any = 0.1,
    variant: str = "gpu",
) -> NaturalGradient:
    """SPRING with a sketch of the kernel; a rate of 0.1 and a cap, or a line search instead."""
    plain = spring(damping, momentum, learning_rate, norm_cap, line_search)
    return _with_sketch(plain, rank, variant)


def _with_sketch(exact: NaturalGradient, rank: Any, variant: str) -> NaturalGradient:
    """The same optimizer with a sketch in place of its solver."""
    return NaturalGradient(
        Nystrom(rank, variant), exact.line_search, exact.damping, exact.momentum, exact.norm_cap
    )


def auto(
    learning_rate: Any = 0.2,
    surprise: Any = 1.5,
    damping: Any = 1e-2,
    least_damping: Any = 1e-16,
    forgetting: Any = 5.0,
    calm: Any = 0.1,
    settle_from: Any = 0.75,
) -> Auto:
    """SPRING that sets its damping, momentum and step size itself; nothing needs tuning."""
    return Auto(
        Smaller(),
        learning_rate,
        surprise,
        damping,
        least_damping,
        forgetting,
        calm,
        settle_from,
    )


def kfac(
    damping: Any = 1e-10,
    momentum: Any = 0.0,
    learning_rate: Any = None,
    line_search: LineSearch | Quadratic | None = None,
    average: Any = 0.95,
    start_at_identity: bool = True,
    refresh_every: int = 10,
) -> Kfac:
    """K-FAC; rate and momentum from the quadratic model unless a rate or line search is given."""
    search = choose(learning_rate, line_search, default=Quadratic())
    return Kfac(damping, search, momentum, average, start_at_identity, refresh_every)


def lbfgs(memory_size: int = 100, line_search_steps: int = 20) -> Lbfgs:
    """L-BFGS with a zoom line search; give it the same batch for many steps."""
    return Lbfgs(memory_size, line_search_steps)


def hessian_free(
    damping: Any = 1.0,
    learning_rate: Any = None,
    line_search: LineSearch | None = None,
    curvature: str = "ggn",
    adapt_damping: bool = True,
    backtracks: bool = True,
    most_iterations: int = 250,
) -> HessianFree:
    """Truncated Newton steps; an Armijo line search unless a rate is given."""
    search = choose(learning_rate, line_search, default=Armijo())
    return HessianFree(damping, search, curvature, adapt_damping, backtracks, most_iterations)


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
