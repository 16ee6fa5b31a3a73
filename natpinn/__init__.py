"""natpinn: physics-informed neural networks trained with natural gradients."""

import jax

jax.config.update("jax_enable_x64", True)  # before any array is made

from . import problems as problems
from .condition import Condition as Condition
from .domains import Box as Box
from .domains import Data as Data
from .domains import Domain as Domain
from .domains import Union as Union
from .errors import InputError as InputError
from .errors import NatpinnWarning as NatpinnWarning
from .line_search import Armijo as Armijo
from .line_search import Fixed as Fixed
from .line_search import Grid as Grid
from .line_search import LineSearch as LineSearch
from .models import MLP as MLP
from .models import FourierFeatures as FourierFeatures
from .models import Periodic as Periodic
from .models import Scaled as Scaled
from .objective import LeastSquares as LeastSquares
from .objective import Linearization as Linearization
from .operators import SecondOrder as SecondOrder
from .operators import divergence as divergence
from .operators import gradient as gradient
from .operators import jacobian as jacobian
from .operators import laplacian as laplacian
from .operators import partial as partial
from .operators import value_gradient_laplacian as value_gradient_laplacian
from .operators import weighted_laplacian as weighted_laplacian
from .operators import weighted_value_gradient_laplacian as weighted_value_gradient_laplacian
from .optimizers import Auto as Auto
from .optimizers import FirstOrder as FirstOrder
from .optimizers import HessianFree as HessianFree
from .optimizers import Kfac as Kfac
from .optimizers import Lbfgs as Lbfgs
from .optimizers import NaturalGradient as NaturalGradient
from .optimizers import Optimizer as Optimizer
from .optimizers import Quadratic as Quadratic
from .optimizers import StepInfo as StepInfo
from .optimizers import adam as adam
from .optimizers import auto as auto
from .optimizers import engd as engd
from .optimizers import engd_w as engd_w
from .optimizers import engd_w_nystrom as engd_w_nystrom
from .optimizers import hessian_free as hessian_free
from .optimizers import kfac as kfac
from .optimizers import lbfgs as lbfgs
from .optimizers import sgd as sgd
from .optimizers import spring as spring
from .optimizers import spring_nystrom as spring_nystrom
from .problem import Problem as Problem
from .resume import resume as resume
from .run import solve as solve
from .sampling import Held as Held
from .sampling import Sampler as Sampler
from .sampling import Sobol as Sobol
from .sampling import Uniform as Uniform
from .solution import Solution as Solution
from .solution import load as load
from .solvers import ConjugateGradients as ConjugateGradients
from .solvers import DampedSolver as DampedSolver
from .solvers import Dual as Dual
from .solvers import Factorization as Factorization
from .solvers import Nystrom as Nystrom
from .solvers import Primal as Primal
from .solvers import Smaller as Smaller
from .solvers import SolveInfo as SolveInfo
from .spacetime import TimeSpace as TimeSpace
from .steps import TrainState as TrainState
from .train import Callback as Callback
from .train import Progress as Progress
from .train import Snapshot as Snapshot
from .train import TrainResult as TrainResult
from .train import train as train
from .tuning import tune as tune

__version__ = "0.1.0"
