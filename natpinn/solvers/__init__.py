"""Solvers of damped linear least squares, one per file."""

from .base import DampedSolver as DampedSolver
from .base import Factorization as Factorization
from .base import SolveInfo as SolveInfo
from .cg import ConjugateGradients as ConjugateGradients
from .dual import Dual as Dual
from .nystrom import Nystrom as Nystrom
from .primal import Primal as Primal
from .smaller import Smaller as Smaller
