"""The public names: `natpinn/__init__.py` reads this file, and loads each where it is used."""

from . import problems as problems
from .domains.base import Domain as Domain
from .domains.base import Union as Union
from .domains.box import Box as Box
from .domains.data import Data as Data
from .domains.sampling import Held as Held
from .domains.sampling import Sampler as Sampler
from .domains.sampling import Sobol as Sobol
from .domains.sampling import Uniform as Uniform
from .domains.spacetime import TimeSpace as TimeSpace
from .equations.condition import Condition as Condition
from .equations.operators import SecondOrder as SecondOrder
from .equations.operators import divergence as divergence
from .equations.operators import gradient as gradient
from .equations.operators import jacobian as jacobian
from .equations.operators import laplacian as laplacian
from .equations.operators import partial as partial
from .equations.operators import value_gradient_laplacian as value_gradient_laplacian
from .equations.operators import weighted_laplacian as weighted_laplacian
from .equations.operators import (
    weighted_value_gradient_laplacian as weighted_value_gradient_laplacian,
)
from .errors import InputError as InputError
from .errors import NatpinnWarning as NatpinnWarning
from .least_squares.linearization import Linearization as Linearization
from .least_squares.objective import LeastSquares as LeastSquares
from .models.embeddings import FourierFeatures as FourierFeatures
from .models.embeddings import Periodic as Periodic
from .models.embeddings import Scaled as Scaled
from .models.mlp import MLP as MLP
from .optimizers.auto import Auto as Auto
from .optimizers.auto import AutoRule as AutoRule
from .optimizers.base import Optimizer as Optimizer
from .optimizers.base import StepInfo as StepInfo
from .optimizers.first_order import FirstOrder as FirstOrder
from .optimizers.hessian_free import HessianFree as HessianFree
from .optimizers.kfac import Kfac as Kfac
from .optimizers.kfac_update import Quadratic as Quadratic
from .optimizers.kfac_update import Searched as Searched
from .optimizers.lbfgs import Lbfgs as Lbfgs
from .optimizers.line_search import Armijo as Armijo
from .optimizers.line_search import Fixed as Fixed
from .optimizers.line_search import Grid as Grid
from .optimizers.line_search import LineSearch as LineSearch
from .optimizers.natural_gradient import NaturalGradient as NaturalGradient
from .optimizers.presets import adam as adam
from .optimizers.presets import auto as auto
from .optimizers.presets import engd as engd
from .optimizers.presets import engd_w as engd_w
from .optimizers.presets import engd_w_nystrom as engd_w_nystrom
from .optimizers.presets import hessian_free as hessian_free
from .optimizers.presets import kfac as kfac
from .optimizers.presets import lbfgs as lbfgs
from .optimizers.presets import sgd as sgd
from .optimizers.presets import spring as spring
from .optimizers.presets import spring_nystrom as spring_nystrom
from .problems.problem import Problem as Problem
from .report.runs import Curve as Curve
from .report.runs import Run as Run
from .report.runs import read_curves as read_curves
from .report.runs import read_runs as read_runs
from .runs.resume import resume as resume
from .runs.solution import Solution as Solution
from .runs.solution import load as load
from .runs.solve import solve as solve
from .search.tuning import tune as tune
from .solvers.accurate import Accurate as Accurate
from .solvers.base import DampedSolver as DampedSolver
from .solvers.base import Factorization as Factorization
from .solvers.base import SolveInfo as SolveInfo
from .solvers.cg import ConjugateGradients as ConjugateGradients
from .solvers.dual import Dual as Dual
from .solvers.ladder import AdaptiveNystrom as AdaptiveNystrom
from .solvers.nystrom import Nystrom as Nystrom
from .solvers.primal import Primal as Primal
from .solvers.smaller import Smaller as Smaller
from .training.loop import train as train
from .training.progress import Callback as Callback
from .training.progress import Progress as Progress
from .training.result import TrainResult as TrainResult
from .training.snapshot import Snapshot as Snapshot
from .training.steps import TrainState as TrainState

__all__: list[str]
__version__: str
