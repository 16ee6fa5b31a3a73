"""Nyström approximations Â of a positive semidefinite A, from products with a random matrix Ω.

Both algorithms compute Nys(A + νI) = Y_ν (ΩᵀY_ν)⁻¹ Y_νᵀ with Y_ν = (A + νI)Ω and a small shift ν,
which never exceeds A + νI. The product A Ω is all that they ask of A.

What is missed, A − Â, is not zero, and a residual there must not be divided by the damping λ alone.
Its largest eigenvalue σ is estimated from a few more random vectors, whose part of B is a sketch of
what the others have missed. A solve uses

    (Â + λI)⁻¹ S + (I − S)/(λ + σ),    S = Â (Â + σI)⁻¹,

which is (v + λ)⁻¹ for eigenvalues v of Â far above σ, (σ + λ)⁻¹ at v = σ, and never more than
1/σ + 1/(λ + σ), however small λ is. If nothing is missed it is the exact inverse.
"""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..errors import InputError
from ..least_squares.blocks import FLOAT
from ..least_squares.footprint import Demand, Footprint
from ..precision import real
from .base import SolveInfo
from .damped import give_up, solve_damped

Product = Callable[[Float[Array, "n k"]], Float[Array, "n k"]]  # Ω ↦ A Ω
Solved = tuple[Float[Array, " n"], Float[Array, ""], Bool[Array, ""]]  # x, λ used, is recovered
Rank = int | float  # a number of vectors, or a share of the rows below 1
RAISES = 8  # of the shift, each tenfold, until the Cholesky factor exists
PROBES = 8  # random vectors more, which measure what the others have missed


class Approximation(eqx.Module):
    """A positive semidefinite matrix of low rank."""

    missed: eqx.AbstractVar[Float[Array, ""]]  # σ, about the largest eigenvalue missed
    shift: eqx.AbstractVar[Float[Array, ""]]  # ν, more than round-off if that was not enough

    @property
    @abstractmethod
    def dense(self) -> Float[Array, "n n"]:
        """Â itself."""

    @property
    @abstractmethod
    def trace(self) -> Float[Array, ""]: ...

    def solve(
        self, b: Float[Array, " n"], damping: Float[Array, ""]
    ) -> tuple[Float[Array, " n"], SolveInfo]:
        """The damped solve above, with more damping where round-off makes that necessary."""
        x, used, is_recovered = self._solve(b, damping)
        details = {"missed": self.missed, "missed_share": self.missed / self.trace}
        return x, SolveInfo(used, is_recovered, details)

    @abstractmethod
    def _solve(self, b: Float[Array, " n"], damping: Float[Array, ""]) -> Solved: ...


class Spectral(Approximation):
    """Â = U Λ Uᵀ."""

    vectors: Float[Array, "n k"]
    values: Float[Array, " k"]  # from the largest
    missed: Float[Array, ""]
    shift: Float[Array, ""]

    @property
    def dense(self) -> Float[Array, "n n"]:
        return (self.vectors * self.values) @ self.vectors.T

    @property
    def trace(self) -> Float[Array, ""]:
        return self.values.sum()

    def _solve(self, b: Float[Array, " n"], damping: Float[Array, ""]) -> Solved:
        seen, outside = self.values / (self.values + self.missed), 1 / (damping + self.missed)
        inside = jnp.where(self.missed > 0, seen, 1.0) / (self.values + damping)
        factors = inside + jnp.where(self.missed > 0, 1 - seen, 0.0) * outside
        along = self.vectors.T @ b
        x = self.vectors @ (factors * along) + (b - self.vectors @ along) * outside
        return x, damping, jnp.array(False)

    def precondition(self, b: Float[Array, " n"], damping: Float[Array, ""]) -> Float[Array, " n"]:
        """U (Λ + λI)⁻¹ Uᵀ b + (b − U Uᵀ b)/(v + λ), with the smallest captured eigenvalue v."""
        along = self.vectors.T @ b
        inside = self.vectors @ (along / (self.values + damping))
        return inside + (b - self.vectors @ along) / (self.values[-1] + damping)


class LowRank(Approximation):
    """Â = B Bᵀ, solved through k × k Cholesky factors (Woodbury)."""

    basis: Float[Array, "n k"]
    missed: Float[Array, ""]
    shift: Float[Array, ""]

    @property
    def dense(self) -> Float[Array, "n n"]:
        return self.basis @ self.basis.T

    @property
    def trace(self) -> Float[Array, ""]:
        return jnp.sum(self.basis**2)

    def _solve(self, b: Float[Array, " n"], damping: Float[Array, ""]) -> Solved:
        core = self.basis.T @ self.basis
        if self.basis.shape[0] == self.basis.shape[1]:  # nothing can be missed
            inner, info = solve_damped(core, self.basis.T @ b, damping, give_up)
            return (b - self.basis @ inner) / info.damping, info.damping, info.is_recovered
        seen, info = solve_damped(core, self.basis.T @ b, self.missed, give_up)
        inside, inner = solve_damped(core, seen, damping, give_up)
        outside = (b - self.basis @ seen) / (damping + self.missed)
        is_recovered = info.is_recovered | inner.is_recovered
        return self.basis @ inside + outside, inner.damping, is_recovered


def check_rank(rank: Rank) -> None:
    is_number = isinstance(rank, int | float) and not isinstance(rank, bool)
    if not is_number or not (0 < rank < 1 or (rank >= 1 and rank % 1 == 0)):
        raise InputError(
            f"rank is a number of vectors, as 350, or a share of the rows, as 0.1, got {rank!r}; a "
            f"rank that is chosen while training is solver=AdaptiveNystrom()"
        )


def columns(rank: Rank, rows: int) -> int:
    """The number of vectors for so many rows."""
    return max(1, min(rows, round(rank * rows if rank < 1 else rank)))


def sketch_width(rank: int, n: int) -> int:
    """The random vectors of a sketch: some more than its rank."""
    return min(n, rank + PROBES)


def sketch_footprint(rank: Rank, rows: int, parameters: int) -> Footprint:
    """What a sketch takes: Ω, Y_ν, B and a copy, k × k matrices, JᵀΩ."""
    width = sketch_width(columns(rank, rows), rows)
    taken = FLOAT * width * (4 * rows + 3 * width + parameters)
    return Footprint(Demand.SKETCH, taken, columns=width)


def stable(
    product: Product, n: int, rank: int, key: PRNGKeyArray, dtype: DTypeLike | None = None
) -> Spectral:
    """The standard algorithm (Frangella, Tropp and Udell 2023, Algorithm 2.1)."""
    omega, _ = jnp.linalg.qr(_random(n, rank, key, dtype))
    basis, shift = _basis(omega, product(omega))
    vectors, singular_values, _ = jnp.linalg.svd(basis, full_matrices=False)
    return Spectral(vectors, (singular_values**2 - shift).clip(0), _missed(basis, rank), shift)


def gpu_efficient(
    product: Product, n: int, rank: int, key: PRNGKeyArray, dtype: DTypeLike | None = None
) -> LowRank:
    """The paper's Algorithm 2: no QR, no SVD, Cholesky factors only."""
    omega = _random(n, rank, key, dtype)  # well-conditioned already
    basis, shift = _basis(omega, product(omega))  # of A + νI: the shift stays
    return LowRank(basis, _missed(basis, rank), shift)


def _random(n: int, rank: int, key: PRNGKeyArray, dtype: DTypeLike | None) -> Float[Array, "n k"]:
    """Gaussian vectors; all unit vectors at full rank, where square ones are ill-conditioned."""
    width = sketch_width(rank, n)
    dtype = real() if dtype is None else dtype
    return jnp.eye(n, dtype=dtype) if width == n else jax.random.normal(key, (n, width), dtype)


def _basis(
    omega: Float[Array, "n k"], y: Float[Array, "n k"]
) -> tuple[Float[Array, "n k"], Float[Array, ""]]:
    """B = Y_ν C⁻ᵀ with Y_ν = Y + νΩ and C Cᵀ = ΩᵀY_ν, and the shift ν that was needed."""

    def factorize(shifted: Float[Array, "n k"]) -> Float[Array, "k k"]:
        return jax.lax.linalg.cholesky(omega.T @ shifted, symmetrize_input=True)

    def is_open(carry: tuple[Array, ...]) -> Array:
        raises, _, _, factor = carry
        return ~jnp.isfinite(factor).all() & (raises < RAISES)

    def raise_shift(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        raises, shift, shifted, _ = carry
        shifted = shifted + 9 * shift * omega
        return raises + 1, 10 * shift, shifted, factorize(shifted)

    shift = jnp.finfo(y.dtype).eps * jnp.linalg.norm(y)
    shifted = y + shift * omega
    first = (jnp.array(0), shift, shifted, factorize(shifted))
    _, shift, shifted, factor = jax.lax.while_loop(is_open, raise_shift, first)
    basis = jax.lax.linalg.triangular_solve(
        factor, shifted, left_side=False, lower=True, transpose_a=True
    )
    return basis, shift


def _missed(basis: Float[Array, "n k"], rank: int) -> Float[Array, ""]:
    """σ: about the largest eigenvalue of A − Â_k, of which the last columns of B are a sketch.

    For B Bᵀ = Â_k + B_last B_lastᵀ, and the second term is the Nyström approximation of A − Â_k.
    """
    if basis.shape[0] == basis.shape[1]:
        return jnp.zeros((), basis.dtype)  # nothing can be
    last = basis[:, rank:]
    gram = last.T @ last
    size = jnp.trace(gram)
    power = jnp.linalg.matrix_power(gram / size, 8)
    return jnp.where(size > 0, size * jnp.linalg.norm(power) ** (1 / 8), 0.0)
