"""The solve that does not square the condition number of J."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..least_squares.blocks import FLOAT
from ..least_squares.footprint import Footprint
from ..least_squares.linearization import Linearization
from ..least_squares.rows import Rows
from ..least_squares.slabs import Slabs, Whitened, slabs
from ..models.theta import Theta
from ..precision import digits
from .base import DampedSolver, Factorization, SolveInfo
from .damped import RAISES, WORST_RESIDUAL
from .dual import DualFactorization
from .primal import PrimalFactorization
from .smaller import Smaller

ROUND_OFF = 4.0  # times the machine's precision and the trace: what a kernel knows nothing below
WORST_CONDITION = 1e9  # of the last Gram matrix, in float64: Q is orthogonal to this times eps
MOST_PASSES = 2  # after the first factor
MATRICES = 10  # the kernel, damped and factored; L⁻¹, a Gram matrix and all factors, twice


class Accurate(DampedSolver[None]):
    """x = argmin |J x − b|² + λ|x|² by an orthogonal factor of the augmented Jacobian.

    J Jᵀ has the square of J's condition number, so its Cholesky factor knows nothing of dampings
    below its round-off, 4 eps tr(J Jᵀ). Above it this solver is `Smaller`. Below it solves with
    A = [M, √λ I]ᵀ = Q R, where M = J if that has fewer rows than parameters (then x = Mᵀ (M Mᵀ +
    λI)⁻¹ b) and M = Jᵀ otherwise (x = (M Mᵀ + λI)⁻¹ M b). Q and R come from Cholesky QR, which
    needs products and Cholesky factors only (Fukaya et al., 2020). With T = I at first, each pass
    whitens M and T:

        S = M Mᵀ + λ T Tᵀ, and L Lᵀ = S + 4 eps tr(S) I
        M, T ← L⁻¹ M, L⁻¹ T

    The first S is the kernel, assembled in whatever way is fastest: it is a preconditioner, and its
    round-off does not matter. The condition number of the second S, read off the diagonal of its
    factor, says how far from orthogonal Q = [M, √λ T]ᵀ L⁻ᵀ would be. Where that is more than 1e9
    eps, M is whitened once more. The last factor gives x = Mᵀ S⁻¹ T b, or x = Tᵀ S⁻¹ M b.

    Where no factor is found, the kernel is solved with more damping, as in every other solver.

        import natpinn

        optimizer = natpinn.spring(damping=1e-20, solver=natpinn.Accurate())
    """

    def init(self, theta: Theta) -> None:
        return None

    def factorize(
        self, linearization: Linearization, state: None, *, key: PRNGKeyArray
    ) -> tuple["AccurateFactorization", None]:
        system, _ = Smaller().factorize(linearization, None, key=key)
        return AccurateFactorization(system), None

    def footprint(self, rows: int, parameters: int) -> Footprint:
        demand = Smaller().footprint(rows, parameters).demand
        return Footprint(demand, MATRICES * FLOAT * min(rows, parameters) ** 2, whitens=True)


class AccurateFactorization(Factorization):
    system: DualFactorization | PrimalFactorization

    def solve(self, b: Float[Array, " n"], damping: Float[Array, ""]) -> tuple[Theta, SolveInfo]:
        round_off = ROUND_OFF * jnp.finfo(b.dtype).eps * self.trace()
        nothing = jax.tree.map(jnp.zeros_like, self.system.linearization.theta)
        is_below = damping < round_off
        x, is_solved = jax.lax.cond(
            is_below, lambda: self._by_factor(b, damping), lambda: (nothing, jnp.array(False))
        )
        is_lost = is_below & ~is_solved

        def by_matrix() -> tuple[Theta, SolveInfo]:
            x, info = self.system.solve(b, jnp.where(is_lost, round_off, damping))
            return x, info._replace(is_recovered=info.is_recovered | is_lost)

        as_asked = SolveInfo(damping, jnp.array(False))
        return jax.lax.cond(is_solved, lambda: (x, as_asked), by_matrix)

    def trace(self) -> Float[Array, ""]:
        return self.system.trace()

    def _by_factor(
        self, b: Float[Array, " n"], damping: Float[Array, ""]
    ) -> tuple[Theta, Bool[Array, ""]]:
        """By Cholesky QR, and whether x solves the system."""
        linearization = self.system.linearization
        plan = linearization.objective.plan

        def work(
            rows: list[Rows], matrix: Array, b: Array, damping: Array
        ) -> tuple[Theta, Bool[Array, ""]]:
            return cholesky_qr(slabs(rows, plan), matrix, b, damping)

        return linearization.on_rows(work, self.system.matrix, b, damping)


class Pass(NamedTuple):
    """What is whitened so far, its Gram matrix, and the factor of that."""

    passes: Int[Array, ""]
    whitened: Whitened
    gram: Float[Array, "m m"]
    factor: Float[Array, "m m"]


def cholesky_qr(
    slabs: Slabs, matrix: Float[Array, "m m"], b: Float[Array, " n"], damping: Float[Array, ""]
) -> tuple[Theta, Bool[Array, ""]]:
    """x by two or three passes over M, given M Mᵀ, and whether x solves the system."""

    def is_needed(last: Pass) -> Bool[Array, ""]:
        is_poor = _condition(last.factor) > WORST_CONDITION ** digits()
        return (last.passes == 0) | ((last.passes < MOST_PASSES) & is_poor)

    def whiten(last: Pass) -> Pass:
        whitened = slabs.whiten(last.whitened, last.factor)
        gram = slabs.gram(whitened, damping)
        return Pass(last.passes + 1, whitened, gram, factor_of(gram))

    first = first_factor(matrix + damping * jnp.eye(len(matrix)))
    start = Pass(jnp.array(0), slabs.start(MOST_PASSES), matrix, first)
    _, whitened, gram, factor = jax.lax.while_loop(is_needed, whiten, start)

    right = slabs.right_side(whitened, b)
    z = jax.scipy.linalg.cho_solve((factor, True), right)
    is_solved = jnp.linalg.norm(gram @ z - right) <= WORST_RESIDUAL * jnp.linalg.norm(right)
    return slabs.solution(whitened, z), is_solved


def first_factor(matrix: Float[Array, "m m"]) -> Float[Array, "m m"]:
    """The factor of a matrix whose round-off may be larger than that of a Gram matrix."""

    def has_failed(carry: tuple[Array, Array, Array]) -> Array:
        raises, _, factor = carry
        return (raises < RAISES) & ~jnp.isfinite(factor[-1, -1])

    def raise_shift(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        raises, shift, _ = carry
        return raises + 1, 10 * shift, factor_of(matrix, 10 * shift)

    start = (jnp.array(0), jnp.array(ROUND_OFF), factor_of(matrix))
    return jax.lax.while_loop(has_failed, raise_shift, start)[2]


def factor_of(
    matrix: Float[Array, "m m"], shift: Float[Array, ""] | float = ROUND_OFF
) -> Float[Array, "m m"]:
    """The Cholesky factor of a matrix whose round-off is made up for by a shift."""
    shift = shift * jnp.finfo(matrix.dtype).eps * jnp.trace(matrix)
    shifted = matrix + shift * jnp.eye(len(matrix), dtype=matrix.dtype)
    return jax.lax.linalg.cholesky(shifted, symmetrize_input=False)


def _condition(factor: Float[Array, "m m"]) -> Float[Array, ""]:
    """About the condition number of L Lᵀ, from below."""
    diagonal = jnp.diagonal(factor)
    return (diagonal.max() / diagonal.min()) ** 2
