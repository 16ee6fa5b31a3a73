"""The solve that does not square the condition number of J."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..least_squares.blocks import FLOAT
from ..least_squares.footprint import Footprint
from ..least_squares.linearization import Linearization
from ..least_squares.rows import Rows
from ..least_squares.slabs import Slabs, backward, forward, slabs
from ..models.theta import Theta
from .base import DampedSolver, Factorization, SolveInfo
from .damped import RAISES, WORST_RESIDUAL
from .dual import DualFactorization
from .primal import PrimalFactorization
from .smaller import Smaller

ROUND_OFF = 4.0  # times the machine's precision and the trace: what a kernel knows nothing below
WORST_CONDITION = 1e9  # of the last Gram matrix: Q is orthogonal to this times the precision
MATRICES = 9  # the kernel, damped and factored, L⁻¹, two Gram matrices and their factors


class Accurate(DampedSolver[None]):
    """x = argmin |J x − b|² + λ|x|² by an orthogonal factor of the augmented Jacobian.

    J Jᵀ has the square of J's condition number, so its Cholesky factor knows nothing of dampings
    below its round-off, 4 eps tr(J Jᵀ). Above it this solver is `Smaller`. Below it solves with
    A = [M, √λ I]ᵀ = Q R, where M = J if that has fewer rows than parameters (then x = Mᵀ (M Mᵀ +
    λI)⁻¹ b) and M = Jᵀ otherwise (x = (M Mᵀ + λI)⁻¹ M b). Q and R come from Cholesky QR, which
    needs products and Cholesky factors only (Fukaya et al., 2020). Each pass whitens M and U, at
    first √λ I:

        S = M Mᵀ + U Uᵀ + 4 eps tr(M Mᵀ + U Uᵀ) I
        L Lᵀ = S
        M, U ← L⁻¹ M, L⁻¹ U

    The first S is the kernel, assembled in whatever way is fastest: it is a preconditioner, and its
    round-off does not matter. The condition number of the second S, read off the diagonal of its
    factor, says how far from orthogonal Q = [M, U]ᵀ L⁻ᵀ would be. Where that is more than 1e9 eps,
    M is whitened once more. The last factor gives x = Mᵀ S⁻¹ b with a b that is whitened too, or
    x = λ^(−½) Uᵀ S⁻¹ M b.

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
            augmented = slabs(rows, damping, plan)
            first = first_factor(matrix + damping * jnp.eye(len(matrix)))
            once = augmented.whitened(first)
            gram = once.gram()
            second = factor_of(gram)

            def whiten_again() -> tuple[Theta, Bool[Array, ""]]:
                twice = once.whitened(second)
                gram = twice.gram()
                return solve_whitened(twice, gram, factor_of(gram), b)

            return jax.lax.cond(
                _condition(second) > WORST_CONDITION,
                whiten_again,
                lambda: solve_whitened(once, gram, second, b),
            )

        return linearization.on_rows(work, self.system.matrix, b, damping)


def solve_whitened(
    slabs: Slabs, gram: Float[Array, "m m"], factor: Float[Array, "m m"], b: Float[Array, " n"]
) -> tuple[Theta, Bool[Array, ""]]:
    """x by the factor of whitened slabs' Gram matrix, and whether it solves the system."""
    right = slabs.right_side(b)
    z = backward(factor, forward(factor, right))
    is_solved = jnp.linalg.norm(gram @ z - right) <= WORST_RESIDUAL * jnp.linalg.norm(right)
    return slabs.solution(z), is_solved


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
