"""Optimizers: each sees a LeastSquares problem on one batch, and nothing of the equation."""

from .auto import Auto as Auto
from .auto import auto as auto
from .base import Demand as Demand
from .base import Optimizer as Optimizer
from .base import StepInfo as StepInfo
from .first_order import FirstOrder as FirstOrder
from .first_order import adam as adam
from .first_order import sgd as sgd
from .hessian_free import HessianFree as HessianFree
from .hessian_free import hessian_free as hessian_free
from .kfac import Kfac as Kfac
from .kfac import Quadratic as Quadratic
from .kfac import kfac as kfac
from .lbfgs import Lbfgs as Lbfgs
from .lbfgs import lbfgs as lbfgs
from .natural_gradient import NaturalGradient as NaturalGradient
from .natural_gradient import engd as engd
from .natural_gradient import engd_w as engd_w
from .natural_gradient import engd_w_nystrom as engd_w_nystrom
from .natural_gradient import spring as spring
from .natural_gradient import spring_nystrom as spring_nystrom
