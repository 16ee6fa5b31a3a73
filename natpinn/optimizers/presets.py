"""Methods by their names: compositions with the paper's defaults.

Hyper-parameters are numbers, or functions of the step such as optax's schedules.
"""

import optax

from .. import schedule
from ..errors import InputError
from ..solvers.base import DampedSolver
from ..solvers.dual import Dual
from ..solvers.nystrom import Nystrom
from ..solvers.primal import Primal
from ..solvers.sketch import Rank
from ..solvers.smaller import Smaller
from .auto import Auto
from .first_order import FirstOrder
from .hessian_free import HessianFree
from .kfac import Kfac
from .kfac_update import Quadratic, Searched, UpdateRule
from .lbfgs import Lbfgs
from .line_search import Armijo, Fixed, Grid, LineSearch, choose
from .natural_gradient import NaturalGradient

Number = schedule.Schedule | float
DEFAULT_LEARNING_RATE = 0.1
DEFAULT_NORM_CAP = 1e-3  # of SPRING with a fixed rate


def sgd(learning_rate: Number = 1e-3, momentum: Number = 0.0) -> FirstOrder:
    """Stochastic gradient descent with momentum.

    **Arguments:**

    - `learning_rate`: what the gradient is multiplied with.
    - `momentum`: the share of the last update that is added, from 0 and below 1.

    **Returns:** an optimizer for `natpinn.solve` and `natpinn.train`.

        natpinn.solve("poisson_2d", optimizer=natpinn.sgd(1e-3, momentum=0.9), steps=10)
    """
    settings = {
        "learning_rate": schedule.learning_rate(learning_rate),
        "momentum": schedule.momentum(momentum),
    }
    return FirstOrder(optax.sgd, settings)


def adam(learning_rate: Number = 1e-3) -> FirstOrder:
    """Adam with the usual moments.

    **Arguments:**

    - `learning_rate`: the length of a step in each parameter, about.

    **Returns:** an optimizer for `natpinn.solve` and `natpinn.train`.

        natpinn.solve("poisson_2d", optimizer=natpinn.adam(1e-2), steps=10)
    """
    return FirstOrder(optax.adam, {"learning_rate": schedule.learning_rate(learning_rate)})


def lbfgs(memory_size: int = 100, line_search_steps: int = 20) -> Lbfgs:
    """L-BFGS with a zoom line search; give it the same batch for many steps.

    **Arguments:**

    - `memory_size`: how many differences of parameters and gradients are kept.
    - `line_search_steps`: the most step sizes that are tried in a step.

    **Returns:** an optimizer for `natpinn.solve` and `natpinn.train`.

        natpinn.solve("poisson_2d", optimizer=natpinn.lbfgs(), steps_per_batch=500, steps=10)
    """
    return Lbfgs(memory_size, line_search_steps)


def hessian_free(
    damping: float = 1.0,
    learning_rate: Number | None = None,
    line_search: LineSearch | None = None,
    curvature: str = "ggn",
    adapt_damping: bool = True,
    backtracks: bool = True,
    most_iterations: int = 250,
) -> HessianFree:
    """Truncated Newton steps; an Armijo line search unless a rate is given.

    **Arguments:**

    - `damping`: λ of the first step; later ones follow from how well the quadratic model predicts.
    - `learning_rate`: a fixed share of the Newton step, in place of a line search.
    - `line_search`: another line search, as `Grid()`.
    - `curvature`: `"ggn"`, the Gauss–Newton matrix, or `"hessian"`.
    - `adapt_damping`: whether λ changes from step to step.
    - `backtracks`: whether an earlier iterate of conjugate gradients is taken where it is better.
    - `most_iterations`: of conjugate gradients in a step.

    **Returns:** an optimizer for `natpinn.solve` and `natpinn.train`.

        natpinn.solve("poisson_2d", optimizer=natpinn.hessian_free(damping=10.0), steps=3)
    """
    search = choose(learning_rate, line_search, default=Armijo())
    return HessianFree(damping, search, curvature, adapt_damping, backtracks, most_iterations)


def kfac(
    damping: Number = 1e-10,
    momentum: Number = 0.0,
    learning_rate: Number | None = None,
    line_search: LineSearch | UpdateRule | None = None,
    average: Number = 0.95,
    start_at_identity: bool = True,
    refresh_every: int = 10,
) -> Kfac:
    """K-FAC; rate and momentum from the quadratic model unless a rate or line search is given.

    **Arguments:**

    - `damping`: λ, added to each Kronecker factor.
    - `momentum`: the share of the last update that is added, beside a rate or a line search.
    - `learning_rate`: a fixed step size.
    - `line_search`: a line search, or `Quadratic()`, the default.
    - `average`: the weight of earlier batches in the Kronecker factors, from 0 and below 1.
    - `start_at_identity`: whether these averages start from the identity, or else from zero.
    - `refresh_every`: steps after which the factors are decomposed anew.

    **Returns:** an optimizer for `natpinn.solve` and `natpinn.train`.

    **Raises:** `InputError` where a momentum is given beside the quadratic model.

        natpinn.solve("poisson_2d", optimizer=natpinn.kfac(damping=1e-8), steps=3)
    """
    found = choose(learning_rate, line_search, default=Quadratic())
    if not isinstance(found, UpdateRule):
        found = Searched(found, momentum)
    elif callable(momentum) or float(momentum) != 0:
        raise InputError(
            f"K-FAC takes its momentum from the quadratic model: leave momentum at 0, got "
            f"{momentum}, or give it a learning rate or a line search"
        )
    return Kfac(damping, found, average, start_at_identity, refresh_every)


def engd(
    damping: Number = 1e-6,
    learning_rate: Number | None = None,
    line_search: LineSearch | None = None,
    average: float = 0.0,
    start_at_identity: bool = True,
) -> NaturalGradient:
    """Energy natural gradient descent, dense Gramian; a line search unless a rate is given.

    **Arguments:**

    - `damping`: λ, added to the P × P Gramian.
    - `learning_rate`: a fixed step size, in place of a line search.
    - `line_search`: another line search than `Grid()`.
    - `average`: the weight of earlier batches in the Gramian, from 0 and below 1.
    - `start_at_identity`: whether this average starts from the identity, or else from zero.

    **Returns:** an optimizer for `natpinn.solve` and `natpinn.train`.

        natpinn.solve("poisson_2d", optimizer=natpinn.engd(damping=1e-8), steps=3)
    """
    search = choose(learning_rate, line_search, default=Grid())
    return NaturalGradient(Primal(average, start_at_identity), search, damping)


def engd_w(
    damping: Number = 1e-6,
    learning_rate: Number | None = None,
    line_search: LineSearch | None = None,
    solver: DampedSolver | None = None,
) -> NaturalGradient:
    """ENGD-W: the same steps through the kernel; a line search unless a rate is given.

    **Arguments:**

    - `damping`: λ, added to the N × N kernel.
    - `learning_rate`: a fixed step size, in place of a line search.
    - `line_search`: another line search than `Grid()`.
    - `solver`: another solver than `Dual()`, as `AdaptiveNystrom()`.

    **Returns:** an optimizer for `natpinn.solve` and `natpinn.train`.

        natpinn.solve("poisson_2d", optimizer=natpinn.engd_w(damping=1e-8), steps=3)
    """
    search = choose(learning_rate, line_search, default=Grid())
    return NaturalGradient(solver or Dual(), search, damping)


def spring(
    damping: Number = 1e-6,
    momentum: Number = 0.9,
    learning_rate: Number | None = None,
    norm_cap: Number | None = DEFAULT_NORM_CAP,
    line_search: LineSearch | None = None,
    solver: DampedSolver | None = None,
) -> NaturalGradient:
    """SPRING: momentum in the regulariser; a rate of 0.1 and a cap, or a line search instead.

    **Arguments:**

    - `damping`: λ, added to the N × N kernel.
    - `momentum`: μ, the share of the last direction that the next one starts from, from 0 and
      below 1.
    - `learning_rate`: a fixed step size.
    - `norm_cap`: C, where a step is at most √C long; `None` for no limit.
    - `line_search`: a line search in place of the rate and the cap.
    - `solver`: another solver than `Dual()`, as `AdaptiveNystrom()`.

    **Returns:** an optimizer for `natpinn.solve` and `natpinn.train`.

    **Raises:** `InputError` where both a line search and a norm cap are given.

        natpinn.solve("poisson_2d", optimizer=natpinn.spring(damping=1e-8, momentum=0.8), steps=3)
    """
    search = choose(learning_rate, line_search, default=Fixed(DEFAULT_LEARNING_RATE))
    if line_search is not None and norm_cap not in (None, DEFAULT_NORM_CAP):
        raise InputError(
            f"a line search takes the place of a norm cap, got both, with norm_cap={norm_cap!r}; "
            f"NaturalGradient(Dual(), line_search, damping, momentum, norm_cap) has both"
        )
    cap = norm_cap if line_search is None else None
    return NaturalGradient(solver or Dual(), search, damping, momentum, cap)


def engd_w_nystrom(
    damping: Number = 1e-6,
    learning_rate: Number | None = None,
    line_search: LineSearch | None = None,
    rank: Rank = 0.1,
    variant: str = "gpu",
) -> NaturalGradient:
    """ENGD-W with a sketch of the kernel; a line search unless a rate is given.

    **Arguments:** those of `engd_w`, and

    - `rank`: the random vectors of the sketch, as a number, or a share of the rows below 1. A rank
      that follows from training is `engd_w(solver=AdaptiveNystrom())`.
    - `variant`: `"gpu"`, Cholesky factors only, or `"standard"`, with QR and SVD.

    **Returns:** an optimizer for `natpinn.solve` and `natpinn.train`.

        natpinn.solve("poisson_2d", optimizer=natpinn.engd_w_nystrom(rank=0.2), steps=3)
    """
    return engd_w(damping, learning_rate, line_search, Nystrom(rank, variant))


def spring_nystrom(
    damping: Number = 1e-6,
    momentum: Number = 0.9,
    learning_rate: Number | None = None,
    norm_cap: Number | None = DEFAULT_NORM_CAP,
    line_search: LineSearch | None = None,
    rank: Rank = 0.1,
    variant: str = "gpu",
) -> NaturalGradient:
    """SPRING with a sketch of the kernel; a rate of 0.1 and a cap, or a line search instead.

    **Arguments:** those of `spring`, and `rank` and `variant` as in `engd_w_nystrom`.

    **Returns:** an optimizer for `natpinn.solve` and `natpinn.train`.

        natpinn.solve("poisson_2d", optimizer=natpinn.spring_nystrom(rank=50), steps=3)
    """
    sketch = Nystrom(rank, variant)
    return spring(damping, momentum, learning_rate, norm_cap, line_search, sketch)


def auto(
    learning_rate: Number = 0.2,
    surprise: Number = 1.5,
    damping: Number = 1e-2,
    least_damping: Number = 1e-16,
    forgetting: Number = 5.0,
    calm: Number = 0.1,
    settle_from: Number = 0.75,
) -> Auto:
    """SPRING that sets its damping, momentum and step size itself; nothing needs tuning.

    **Arguments:** none is needed. Dampings are relative to the trace of the kernel.

    - `learning_rate`: the share of the direction that a step takes.
    - `surprise`: the relative linearization error that is wanted while a run searches: how far the
      residual after a step is from its linear prediction, relative to the predicted change. Noisy
      data want less, as 0.5.
    - `damping`: where a run starts to search, and starts to settle.
    - `least_damping`: below it the damping does not fall.
    - `forgetting`: c in the momentum 1 − c/(c' + age).
    - `calm`: the relative linearization error that is wanted while a run settles.
    - `settle_from`: the share of a run after which it settles.

    **Returns:** an optimizer for `natpinn.solve` and `natpinn.train`.

        natpinn.solve("poisson_2d", optimizer=natpinn.auto(surprise=0.5), steps=10)
    """
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
