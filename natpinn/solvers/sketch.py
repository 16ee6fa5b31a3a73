"""Nyström approximations Â of a positive semidefinite A, from products with a random matrix Ω.

Both algorithms compute Nys(A + νI) = Y_ν (ΩᵀY_ν)⁻¹ Y_νᵀ with Y_ν = (A + νI)Ω and a small shift ν,
which never exceeds A + νI. The product A Ω is all that they ask of A.

What is missed, A − Â, is not zero, and a residual there must not be divided by the damping λ alone.
Its largest eigenvalue σ is estimated from a few more random vectors, and a solve uses

    (Â + λI)⁻¹ S + (I − S)/(λ + σ),    S = Â (Â + σI)⁻¹,

which is (v + λ)⁻¹ for eigenvalues v of Â far above σ, (σ + λ)⁻¹ at v = σ, and never more than
1/σ + 1/(λ + σ), however small λ is. If nothing is missed it is the exact inverse.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..errors import InputError
from .base import smooth_count
from .damped import solve_damped

Product = Callable[[Float[Array, "n k"]], Float[Array, "n k"]]  # Ω ↦ A Ω
Rank = int | float  # a number of vectors, or a share of the rows below 1
RAISES = 8  # of the shift, each tenfold, until the Cholesky factor exists
PROBES = 8  # random vectors that measure what was missed
POWERS = 8  # of the small matrix whose largest eigenvalue is σ


class Approximation(eqx.Module):
    """A positive semidefinite matrix of low rank."""

    missed: eqx.AbstractVar[Float[Array, ""]]  # σ, about the largest eigenvalue of A − Â
    shift: eqx.AbstractVar[Float[Array, ""]]  # ν, more than round-off if that was not enough

    @property
    @abstractmethod
    def dense(self) -> Float[Array, "n n"]:
        """Â itself."""

    @abstractmethod
    def solve(
        self, b: Float[Array, " n"], damping: Float[Array, ""]
    ) -> tuple[Float[Array, " n"], Bool[Array, ""]]:
        """The damped solve above, and whether round-off made more damping necessary."""

    @abstractmethod
    def effective_dimension(self, damping: Float[Array, ""]) -> Float[Array, ""]: ...


class Spectral(Approximation):
    """Â = U Λ Uᵀ."""

    vectors: Float[Array, "n k"]
    values: Float[Array, " k"]  # from the largest
    missed: Float[Array, ""]
    shift: Float[Array, ""]

    @property
    def dense(self) -> Float[Array, "n n"]:
        return (self.vectors * self.values) @ self.vectors.T

    def solve(
        self, b: Float[Array, " n"], damping: Float[Array, ""]
    ) -> tuple[Float[Array, " n"], Bool[Array, ""]]:
        seen, outside = self.values / (self.values + self.missed), 1 / (damping + self.missed)
        inside = jnp.where(self.missed > 0, seen, 1.0) / (self.values + damping)
        factors = inside + jnp.where(self.missed > 0, 1 - seen, 0.0) * outside
        along = self.vectors.T @ b
        x = self.vectors @ (factors * along) + (b - self.vectors @ along) * outside
        return x, jnp.array(False)

    def precondition(self, b: Float[Array, " n"], damping: Float[Array, ""]) -> Float[Array, " n"]:
        """U (Λ + λI)⁻¹ Uᵀ b + (b − U Uᵀ b)/(v + λ), with the smallest captured eigenvalue v."""
        along = self.vectors.T @ b
        inside = self.vectors @ (along / (self.values + damping))
        return inside + (b - self.vectors @ along) / (self.values[-1] + damping)

    def effective_dimension(self, damping: Float[Array, ""]) -> Float[Array, ""]:
        return smooth_count(self.values, damping)


class LowRank(Approximation):
    """Â = B Bᵀ, solved through k × k Cholesky factors (Woodbury)."""

    basis: Float[Array, "n k"]
    missed: Float[Array, ""]
    shift: Float[Array, ""]

    @property
    def dense(self) -> Float[Array, "n n"]:
        return self.basis @ self.basis.T

    def solve(
        self, b: Float[Array, " n"], damping: Float[Array, ""]
    ) -> tuple[Float[Array, " n"], Bool[Array, ""]]:
        core = self.basis.T @ self.basis
        if self.basis.shape[0] == self.basis.shape[1]:  # nothing can be missed
            inner, info = solve_damped(core, self.basis.T @ b, damping)
            return (b - self.basis @ inner) / info.damping, info.is_recovered
        seen, info = solve_damped(core, self.basis.T @ b, self.missed)
        inside, inner_info = solve_damped(core, seen, damping)
        outside = (b - self.basis @ seen) / (damping + self.missed)
        return self.basis @ inside + outside, info.is_recovered | inner_info.is_recovered

    def effective_dimension(self, damping: Float[Array, ""]) -> Float[Array, ""]:
        return smooth_count(jnp.linalg.eigvalsh(self.basis.T @ self.basis), damping)


def check_rank(rank: Rank) -> None:
    is_number = isinstance(rank, int | float) and not isinstance(rank, bool)
    if not is_number or not (0 < rank < 1 or (rank >= 1 and rank % 1 == 0)):
        raise InputError(
            f'rank is a number of vectors, as 350, a share of the rows, as 0.1, or "auto", got '
            f"{rank!r}"
        )


def columns(rank: Rank, rows: int) -> int:
    """The number of vectors for so many rows."""
    return max(1, min(rows, round(rank * rows if rank < 1 else rank)))


def sketch_bytes(rank: Rank, rows: int, parameters: int) -> int:
    """What a sketch takes: Y, B and copies of them, k × k matrices, JᵀΩ."""
    width = columns(rank, rows) + PROBES
    return 8 * width * (4 * rows + 3 * width + parameters)


def stable(
    product: Product, n: int, rank: int, key: PRNGKeyArray, dtype: Any = jnp.float64
) -> Spectral:
    """The standard algorithm (Frangella, Tropp and Udell 2023, Algorithm 2.1)."""
    random = jax.random.normal(key, (n, rank + PROBES), dtype)
    omega, _ = jnp.linalg.qr(random[:, :rank])
    y, probes, seen_by_probes = _sketch(product, omega, random[:, rank:])
    basis, shift = _basis(omega, y)
    vectors, singular_values, _ = jnp.linalg.svd(basis, full_matrices=False)
    missed = _missed(basis, probes, seen_by_probes)
    return Spectral(vectors, (singular_values**2 - shift).clip(0), missed, shift)


def gpu_efficient(
    product: Product, n: int, rank: int, key: PRNGKeyArray, dtype: Any = jnp.float64
) -> LowRank:
    """The paper's Algorithm 2: no QR, no SVD, Cholesky factors only."""
    random = jax.random.normal(key, (n, rank + PROBES), dtype)
    omega = random[:, :rank]  # Gaussian, so well-conditioned already
    y, probes, seen_by_probes = _sketch(product, omega, random[:, rank:])
    basis, shift = _basis(omega, y)  # of A + νI: the shift stays
    return LowRank(basis, _missed(basis, probes, seen_by_probes), shift)


def _sketch(
    product: Product, omega: Float[Array, "n k"], probes: Float[Array, "n q"]
) -> tuple[Array, Array, Array]:
    """A Ω, the probes, and A times the probes: one product."""
    rank = omega.shape[1]
    if rank == len(omega):
        return product(omega), probes, probes
    together = product(jnp.concatenate([omega, probes], axis=1))
    return together[:, :rank], probes, together[:, rank:]


def _basis(
    omega: Float[Array, "n k"], y: Float[Array, "n k"]
) -> tuple[Float[Array, "n k"], Float[Array, ""]]:
    """B = Y_ν C⁻¹ with Y_ν = Y + νΩ and CᵀC = ΩᵀY_ν, and the shift ν that was needed."""
    smallest = jnp.finfo(y.dtype).eps * jnp.linalg.norm(y)

    def attempt(shift: Float[Array, ""]) -> tuple[Array, Array]:
        core = omega.T @ (y + shift * omega)
        return shift, jax.lax.linalg.cholesky(core, symmetrize_input=True)

    def is_open(carry: tuple[Array, Array, Array]) -> Array:
        raises, _, factor = carry
        return ~jnp.isfinite(factor).all() & (raises < RAISES)

    def raise_shift(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        raises, shift, _ = carry
        return raises + 1, *attempt(10 * shift)

    first = (jnp.array(0), *attempt(smallest))
    _, shift, factor = jax.lax.while_loop(is_open, raise_shift, first)
    shifted = y + shift * omega
    return jax.scipy.linalg.solve_triangular(factor, shifted.T, lower=True).T, shift


def _missed(
    basis: Float[Array, "n k"], probes: Float[Array, "n q"], products: Float[Array, "n q"]
) -> Float[Array, ""]:
    """σ ≈ |A − Â|: the largest eigenvalue of a Nyström approximation of A − Â from the probes."""
    n, rank = basis.shape
    if rank == n:
        return jnp.zeros((), basis.dtype)
    errors = products - basis @ (basis.T @ probes)
    core = probes.T @ errors
    round_off = jnp.finfo(core.dtype).eps * jnp.abs(jnp.trace(core))
    factor = jax.scipy.linalg.cho_factor(
        (core + core.T) / 2 + round_off * jnp.eye(len(core), dtype=core.dtype)
    )
    step = jax.scipy.linalg.cho_solve(factor, errors.T @ errors)
    vector, size = jnp.ones(len(core), core.dtype), jnp.zeros((), core.dtype)
    for _ in range(POWERS):
        vector = step @ vector
        size = jnp.linalg.norm(vector)
        vector = vector / size
    frobenius = jnp.linalg.norm(errors) / jnp.sqrt(probes.shape[1])  # never far below |A − Â|
    return jnp.where(jnp.isfinite(size), jnp.minimum(size, frobenius), frobenius)
