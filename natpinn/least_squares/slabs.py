"""An augmented Jacobian in slabs of columns, from the left by inverse triangular factors.

That is what Cholesky QR is made of: L⁻¹ [M, √λ I], where M = J is cut by parameters, or M = Jᵀ by
rows. M has as many rows as the smaller side of J. Slabs are held where the plan holds all;
otherwise each is made, and whitened, whenever it is asked for.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Self, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..models.theta import Theta
from ..parallel.devices import DEVICES, Index, loop
from ..parallel.plan import Plan
from .blocks import FLOAT, Block, Dense, blocks_of, merge_small, split, unmerged
from .kernel import add_square, mirror, summed
from .rows import Rows

Carry = TypeVar("Carry")
Work = Callable[[Carry, Float[Array, "m c"], Index], Carry]  # a slab, and its first column


@dataclass(frozen=True)
class Slabs(ABC):
    """L⁻¹ [M, √λ I], with L = L₁ L₂ … of all factors so far."""

    rows: Sequence[Rows]
    plan: Plan
    tail: Float[Array, "m m"]  # L⁻¹ √λ
    factors: tuple[Float[Array, "m m"], ...] = ()
    held: tuple[Float[Array, "m c"], ...] | None = None  # whitened

    @property
    @abstractmethod
    def side(self) -> int:
        """m, the number of rows of M."""

    @property
    @abstractmethod
    def arrays(self) -> int:
        """How many arrays there are slabs of."""

    @abstractmethod
    def _make(self, k: int, work: Work[Carry], carry: Carry) -> Carry:
        """Work on the slabs of the k-th array, made but not whitened, one after another."""

    @abstractmethod
    def right_side(self, b: Float[Array, " n"]) -> Float[Array, " m"]:
        """c, with which x is `solution` of (L⁻¹ (M Mᵀ + λI) L⁻ᵀ)⁻¹ c."""

    @abstractmethod
    def solution(self, z: Float[Array, " m"]) -> Theta:
        """x = argmin |J x − b|² + λ|x|², shaped as θ."""

    def whitened(self, factor: Float[Array, "m m"]) -> Self:
        """The same matrix from the left by the inverse of one more factor."""
        held = None
        if self._is_whole:
            slabs = self.held or tuple(self._whole(k) for k in range(self.arrays))
            held = tuple(forward(factor, slab) for slab in slabs)
        tail, factors = forward(factor, self.tail), (*self.factors, factor)
        return replace(self, tail=tail, factors=factors, held=held)

    def gram(self) -> Float[Array, "m m"]:
        """L⁻¹ (M Mᵀ + λI) L⁻ᵀ."""

        def add(total: Array, slab: Array, first: Index) -> Array:
            return add_square(total, [Dense(slab)], self.plan)

        total = jnp.zeros((self.side, self.side))
        for k in range(self.arrays):
            total = self._fold(k, add, total)
        return mirror(add(summed(total, self.plan), self.tail, 0))

    @property
    def _is_whole(self) -> bool:
        return self.plan.held and self.plan.working_bytes is None

    def _whole(self, k: int) -> Float[Array, "m c"]:
        """The only slab of an array."""
        return self._make(k, lambda carry, slab, first: slab, jnp.zeros(()))

    def _fold(self, k: int, work: Work[Carry], carry: Carry) -> Carry:
        """Work on the slabs of the k-th array, one after another."""
        if self.held is not None:
            return work(carry, self.held[k], 0)

        def whiten(carry: Carry, slab: Array, first: Index) -> Carry:
            for factor in self.factors:
                slab = forward(factor, slab)
            return work(carry, slab, first)

        return self._make(k, whiten, carry)


class Columns(Slabs):
    """M = J: of all residuals the gradients by some parameters.

    On several devices each has all rows, and its share of the parameters.
    """

    @property
    def side(self) -> int:
        return sum(source.count for source in self.rows)

    @property
    def arrays(self) -> int:
        return len(self._shapes)

    def right_side(self, b: Float[Array, " n"]) -> Float[Array, " n"]:
        """L⁻¹ b."""
        for factor in self.factors:
            b = forward(factor, b)
        return b

    def solution(self, z: Float[Array, " n"]) -> Theta:
        """(L⁻¹ J)ᵀ z."""
        vectors = [self._vector(k, z) for k in range(self.arrays)]
        return unmerged(vectors, jax.eval_shape(self.rows[0].blocks, 0))

    def _vector(self, k: int, z: Float[Array, " n"]) -> Float[Array, " q"]:
        def fill(vector: Array, slab: Array, first: Index) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(vector, z @ slab, first, 0)

        mine = self._fold(k, fill, jnp.zeros(self._shapes[k].size))
        if self.plan.mesh is None:
            return mine
        whole = jax.lax.all_gather(mine, DEVICES, tiled=True)  # by outputs, with some padding
        merged = jax.eval_shape(lambda: merge_small(self.rows[0].blocks(0)))
        return whole[: merged[k].size]

    @property
    def _shapes(self) -> list[Block]:
        return jax.eval_shape(lambda: self._chunk(self.rows[0], 0))

    def _chunk(self, source: Rows, i: Index) -> list[Block]:
        merged = merge_small(source.blocks(i))
        return [block.exchanged() for block in merged] if self.plan.mesh is not None else merged

    def _make(self, k: int, work: Work[Carry], carry: Carry) -> Carry:
        shape = self._shapes[k]
        outputs = shape.shape[1]
        each = shape.size // outputs  # parameters
        width = outputs
        if not self._is_whole:
            most = self.plan.working_bytes or FLOAT * self.side * shape.size
            width = max(1, min(outputs, most // (FLOAT * self.side * each)))

        def take(start: Index, count: int, carry: Carry) -> Carry:
            parts = [self._some(source, k, start, count) for source in self.rows]
            return work(carry, jnp.concatenate(parts), start * each)

        whole, rest = divmod(outputs, width)
        carry = loop(whole, lambda i, carry: take(i * width, width, carry), carry)
        return take(whole * width, rest, carry) if rest else carry

    def _some(self, source: Rows, k: int, start: Index, count: int) -> Float[Array, "n c"]:
        """The gradients of one condition by some outputs of the k-th array."""

        def fill(i: Index, all_rows: Array) -> Array:
            part = self._chunk(source, i)[k].some_outputs(start, count).matrix()
            return jax.lax.dynamic_update_slice_in_dim(all_rows, part, source.start(i), 0)

        shape = self._shapes[k]
        width = shape.size // shape.shape[1] * count
        if source.chunks == 1:
            return self._chunk(source, 0)[k].some_outputs(start, count).matrix()
        return loop(source.chunks, fill, jnp.zeros((source.count, width)))


class TransposedRows(Slabs):
    """M = Jᵀ: of some residuals the gradients by all parameters, as columns.

    On several devices each has its rows.
    """

    @property
    def side(self) -> int:
        return parameters(self.rows)

    @property
    def arrays(self) -> int:
        return len(self.rows)

    def right_side(self, b: Float[Array, " n"]) -> Float[Array, " p"]:
        """L⁻¹ Jᵀ b."""
        tops = [0, *accumulate(source.count for source in self.rows)]
        total = jnp.zeros(self.side)
        for k, top in enumerate(tops[:-1]):

            def add(total: Array, slab: Array, first: Index, top: int = top) -> Array:
                start = top + first + self._offset(slab)
                return total + slab @ jax.lax.dynamic_slice_in_dim(b, start, slab.shape[1])

            total = self._fold(k, add, total)
        return summed(total, self.plan)

    def solution(self, z: Float[Array, " p"]) -> Theta:
        """L⁻ᵀ z."""
        for factor in reversed(self.factors):
            z = backward(factor, z)
        return split(z, jax.eval_shape(self.rows[0].blocks, 0))

    def _offset(self, slab: Float[Array, "p c"]) -> Index:
        """Where this device's columns begin in a slab of all devices."""
        return 0 if self.plan.mesh is None else slab.shape[1] * jax.lax.axis_index(DEVICES)

    def _make(self, k: int, work: Work[Carry], carry: Carry) -> Carry:
        source = self.rows[k]

        def chunk(i: Index, carry: Carry) -> Carry:
            blocks = blocks_of(source.distinct(i))
            slab = jnp.concatenate([block.matrix() for block in blocks], 1).T
            return work(carry, jax.lax.optimization_barrier(slab), source.start(i))

        return loop(source.chunks, chunk, carry)


def slabs(rows: Sequence[Rows], damping: Float[Array, ""], plan: Plan) -> Slabs:
    """[J, √λ I] by columns where J has no more rows than columns, and otherwise [Jᵀ, √λ I]."""
    counts = sum(source.count for source in rows), parameters(rows)
    tail = jnp.sqrt(damping) * jnp.eye(min(counts))
    kind = Columns if counts[0] <= counts[1] else TransposedRows
    return kind(rows, plan, tail)


def parameters(rows: Sequence[Rows]) -> int:
    return sum(block.size for block in blocks_of(jax.eval_shape(rows[0].blocks, 0)))


def forward(factor: Float[Array, "m m"], right: Float[Array, "m ..."]) -> Float[Array, "m ..."]:
    """L⁻¹ B by substitution: an inverse of L would lose digits."""
    b = right[:, None] if right.ndim == 1 else right
    x = jax.lax.linalg.triangular_solve(factor, b, left_side=True, lower=True)
    return x[:, 0] if right.ndim == 1 else x


def backward(factor: Float[Array, "m m"], right: Float[Array, " m"]) -> Float[Array, " m"]:
    """L⁻ᵀ b."""
    return jax.lax.linalg.triangular_solve(
        factor, right[:, None], left_side=True, lower=True, transpose_a=True
    )[:, 0]
