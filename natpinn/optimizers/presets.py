"""Methods by their names: compositions with the paper's defaults.

Hyper-parameters are numbers, or functions of the step such as optax's schedules.
"""

import optax

from .. import schedule
from ..errors import InputError
from ..schedule import Number
from ..solvers.accurate import Accurate
from ..solvers.base import DampedSolver
from ..solvers.dual import Dual
from ..solvers.nystrom import Nystrom
from ..solvers.primal import Primal
from ..solvers.sketch import Rank
from .auto import Auto
from .first_order import FirstOrder
from .hessian_free import HessianFree
from .kfac import Kfac
from .kfac_update import Quadratic, Searched, UpdateRule
from .lbfgs import Lbfgs
from .line_search import Armijo, Fixed, Grid, LineSearch, choose
from .natural_gradient import NaturalGradient

DEFAULT_LEARNING_RATE = 0.1
DEFAULT_NORM_CAP = 1e-3  # of SPRING with a fixed rate


def sgd(learning_rate: Number = 1e-3, momentum: Number = 0.0) -> FirstOrder:
    """Stochastic gradient descent with momentum.

    **Arguments:** hyper-parameters are numbers, or functions of the step such as optax's schedules.

    - `learning_rate`: what the gradient of the loss is multiplied with; too large a rate makes the
      loss grow. Default: 1e-3.
    - `momentum`: the share of the last update that is added to the next, from 0 and below 1.
      Default: 0.

    **Returns:** an optimizer for `natpinn.solve` and `natpinn.train`.

    **Raises:** `InputError` for a number out of its range.

        import natpinn

        optimizer = natpinn.sgd(1e-3, momentum=0.9)
        natpinn.solve("poisson_2d", optimizer=optimizer, steps=3, progress=False)
    """
    settings = {
        "learning_rate": schedule.learning_rate(learning_rate),
        "momentum": schedule.momentum(momentum),
    }
    return FirstOrder(optax.sgd, settings)


def adam(learning_rate: Number = 1e-3) -> FirstOrder:
    """Adam, with decay rates of 0.9 and 0.999 for its moments.

    **Arguments:** hyper-parameters are numbers, or functions of the step such as optax's schedules.

    - `learning_rate`: about how far a step changes each parameter. Default: 1e-3.

    **Returns:** an optimizer for `natpinn.solve` and `natpinn.train`.

    **Raises:** `InputError` for a number out of its range.

        import natpinn

        optimizer = natpinn.adam(1e-2)
        natpinn.solve("poisson_2d", optimizer=optimizer, steps=3, progress=False)
    """
    return FirstOrder(optax.adam, {"learning_rate": schedule.learning_rate(learning_rate)})


def lbfgs(memory_size: int = 100, line_search_steps: int = 20) -> Lbfgs:
    """L-BFGS with a zoom line search; give it the same batch for many steps.

    **Arguments:**

    - `memory_size`: how many pairs of differences of parameters and gradients are kept. Default:
      100.
    - `line_search_steps`: the most step sizes that are tried in a step. Default: 20.

    **Returns:** an optimizer for `natpinn.solve` and `natpinn.train`.

    **Raises:** `InputError` for a number out of its range.

        import natpinn

        optimizer = natpinn.lbfgs(memory_size=20)
        natpinn.solve(
            "poisson_2d", optimizer=optimizer, steps_per_batch=500, steps=3, progress=False
        )
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
    """Truncated Newton steps (Hessian-free); an Armijo line search unless a rate is given.

    **Arguments:**

    - `damping`: λ of the first step, added to the curvature. Default: 1.
    - `learning_rate`: a fixed share of the Newton step, in place of a line search. Default: none.
    - `line_search`: another line search, as `Grid()`. Default: `Armijo()`.
    - `curvature`: `"ggn"`, the Gauss–Newton matrix JᵀJ, or `"hessian"`. Default: `"ggn"`.
    - `adapt_damping`: whether λ goes up or down with how well the quadratic model has predicted the
      loss. Default: True.
    - `backtracks`: whether an earlier iterate of conjugate gradients is taken where its loss is
      lower. Default: True.
    - `most_iterations`: of conjugate gradients in a step, each a product with the curvature.
      Default: 250.

    **Returns:** an optimizer for `natpinn.solve` and `natpinn.train`.

    **Raises:** `InputError` for a number out of its range, and where both a learning rate and a
    line search are given.

        import natpinn

        optimizer = natpinn.hessian_free(damping=10.0)
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
    """K-FAC; rate and momentum from the quadratic model of the loss, unless one is given.

    **Arguments:** hyper-parameters are numbers, or functions of the step such as optax's schedules.

    - `damping`: λ, added to each Kronecker factor. Default: 1e-10.
    - `momentum`: the share of the last update that is added, beside a rate or a line search.
      Default: 0.
    - `learning_rate`: a fixed step size, in place of the quadratic model's. Default: none.
    - `line_search`: a line search in place of the quadratic model. Default: `Quadratic()`.
    - `average`: the weight of earlier batches in the Kronecker factors, from 0 and below 1.
      Default: 0.95.
    - `start_at_identity`: whether these averages start from the identity, or else from zero.
      Default: True.
    - `refresh_every`: steps after which the factors are decomposed anew; fewer make a step longer.
      Default: 10.

    **Returns:** an optimizer for `natpinn.solve` and `natpinn.train`.

    **Raises:** `InputError` for a number out of its range, where both a learning rate and a line
    search are given, and where a momentum is given beside the quadratic model.

        import natpinn

        optimizer = natpinn.kfac(damping=1e-8)
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
    solver: DampedSolver | None = None,
) -> NaturalGradient:
    """Energy natural gradient descent, dense Gramian; a line search unless a rate is given.

    **Arguments:** hyper-parameters are numbers, or functions of the step such as optax's schedules.

    - `damping`: λ, added to the P × P Gramian JᵀJ, in its unit. Default: 1e-6.
    - `learning_rate`: a fixed step size, in place of a line search. Default: none.
    - `line_search`: another line search. Default: `Grid()`.
    - `average`: the weight of earlier batches in the Gramian, from 0 and below 1. Default: 0.
    - `start_at_identity`: whether this average starts from the identity, or else from zero.
      Default: True.
    - `solver`: another solver, as `Accurate()`, which knows one batch and so no average. Default:
      `Primal(average, start_at_identity)`.

    **Returns:** an optimizer for `natpinn.solve` and `natpinn.train`.

    **Raises:** `InputError` for a number out of its range, where both a learning rate and a line
    search are given, and where an average is given beside a solver.

        import natpinn

        optimizer = natpinn.engd(damping=1e-8)
    """
    search = choose(learning_rate, line_search, default=Grid())
    if solver is None:
        solver = Primal(average, start_at_identity)
    elif average != 0:
        raise InputError(
            f"the average of Gramians belongs to ENGD's own solver, got average={average!r} beside "
            f"{solver!r}: leave one of them out, or pass solver=Primal(average)"
        )
    return NaturalGradient(solver, search, damping)


def engd_w(
    damping: Number = 1e-6,
    learning_rate: Number | None = None,
    line_search: LineSearch | None = None,
    solver: DampedSolver | None = None,
) -> NaturalGradient:
    """ENGD-W: the steps of ENGD through the kernel; a line search unless a rate is given.

    **Arguments:** hyper-parameters are numbers, or functions of the step such as optax's schedules.

    - `damping`: λ, added to the N × N kernel JJᵀ, in its unit. Default: 1e-6.
    - `learning_rate`: a fixed step size, in place of a line search. Default: none.
    - `line_search`: another line search. Default: `Grid()`.
    - `solver`: another solver, as `AdaptiveNystrom()`. Default: `Dual()`.

    **Returns:** an optimizer for `natpinn.solve` and `natpinn.train`.

    **Raises:** `InputError` for a number out of its range, and where both a learning rate and a
    line search are given.

        import natpinn

        optimizer = natpinn.engd_w(damping=1e-8)
        natpinn.solve("poisson_2d", optimizer=optimizer, steps=3, progress=False)
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
    """SPRING: momentum in the regulariser; a rate of 0.1 and a norm cap, or a line search instead.

    **Arguments:** hyper-parameters are numbers, or functions of the step such as optax's schedules.

    - `damping`: λ, added to the N × N kernel JJᵀ, in its unit. Default: 1e-6.
    - `momentum`: μ, the share of the last direction that the next one starts from, from 0 and below
      1. Default: 0.9.
    - `learning_rate`: a fixed step size η. Default: 0.1.
    - `norm_cap`: C, with which no step is longer than √C; None for no limit. Default: 1e-3.
    - `line_search`: a line search in place of the rate and the cap. Default: none.
    - `solver`: another solver, as `AdaptiveNystrom()`. Default: `Dual()`.

    **Returns:** an optimizer for `natpinn.solve` and `natpinn.train`.

    **Raises:** `InputError` for a number out of its range, and where a line search is given beside
    a learning rate or a norm cap.

        import natpinn

        optimizer = natpinn.spring(damping=1e-8, momentum=0.8)
        natpinn.solve("poisson_2d", optimizer=optimizer, steps=3, progress=False)
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

    **Arguments:**

    - `damping`, `learning_rate`, `line_search`: as in `engd_w`.
    - `rank`: the number of random vectors of the sketch, or below 1 their share of the rows. A rank
      that follows from training is `engd_w(solver=AdaptiveNystrom())`. Default: 0.1.
    - `variant`: `"gpu"`, Cholesky factors only, or `"standard"`, with QR and SVD. Default: `"gpu"`.

    **Returns:** an optimizer for `natpinn.solve` and `natpinn.train`.

    **Raises:** `InputError` as `engd_w`, and for a rank or a variant that cannot be.

        import natpinn

        optimizer = natpinn.engd_w_nystrom(rank=0.2)
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
    """SPRING with a sketch of the kernel; a rate of 0.1 and a norm cap, or a line search instead.

    **Arguments:**

    - `damping`, `momentum`, `learning_rate`, `norm_cap`, `line_search`: as in `spring`.
    - `rank`, `variant`: of the sketch, as in `engd_w_nystrom`.

    **Returns:** an optimizer for `natpinn.solve` and `natpinn.train`.

    **Raises:** `InputError` as `spring`, and for a rank or a variant that cannot be.

        import natpinn

        optimizer = natpinn.spring_nystrom(rank=50)
    """
    sketch = Nystrom(rank, variant)
    return spring(damping, momentum, learning_rate, norm_cap, line_search, sketch)


def auto(
    learning_rate: Number = 0.2,
    surprise: Number = 1.5,
    damping: Number = 1e-2,
    least_damping: Number = 1e-28,
    forgetting: Number = 5.0,
    calm: Number = 0.1,
    settle_from: Number = 0.75,
) -> Auto:
    """SPRING whose damping, momentum and step size follow from the loss: nothing needs tuning.

    **Arguments:** none is needed. Dampings are relative to the trace of the kernel.

    - `learning_rate`: the share of the direction that a step takes. Default: 0.2.
    - `surprise`: the relative linearization error that steps aim at in the search phase: how far
      the residual after a step is from its linear prediction, relative to the predicted change.
      With a larger one the damping is smaller. Noisy data want less, as 0.5. Default: 1.5.
    - `damping`: at the start of a run, and at least at the start of its final phase. Default: 1e-2.
    - `least_damping`: the damping never falls below it; in runs of less than 600 steps not to it,
      and in runs of 250 or less not below 1e-15. Default: 1e-28.
    - `forgetting`: c in the momentum 1 − c/(10 + age), where the age counts steps and goes back
      while the loss rises. With a larger one directions are forgotten sooner. Default: 5.
    - `calm`: the relative linearization error that steps aim at in the final phase, in which a run
      settles. Default: 0.1.
    - `settle_from`: the share of a run after which that phase begins, from 0 and below 1. Default:
      0.75.

    **Returns:** an optimizer for `natpinn.solve` and `natpinn.train`.

    **Raises:** `InputError` for a number out of its range.

        import natpinn

        optimizer = natpinn.auto(surprise=0.5)
        natpinn.solve("poisson_2d", optimizer=optimizer, steps=3, progress=False)
    """
    return Auto(
        Accurate(),
        learning_rate,
        surprise,
        damping,
        least_damping,
        forgetting,
        calm,
        settle_from,
    )
