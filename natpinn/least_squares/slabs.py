"""A matrix in slabs of columns, from the left by inverse triangular factors.

That is what Cholesky QR is made of: L⁻¹ M, where M = J is cut by parameters, or M = Jᵀ by rows. M
has as many rows as the smaller side of J. Where the plan holds all, L⁻¹ M is one array in memory;
otherwise each slab is made, and whitened, whenever it is asked for.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..models.theta import Theta
from ..parallel.devices import DEVICES, Index, loop
from ..parallel.plan import Plan
from .blocks import FLOAT, Block, Dense, merge_small, split, unmerged
from .kernel import add_square, all_rows, mirror, summed, transposed
from .rows import Rows

Carry = TypeVar("Carry")
Work = Callable[[Carry, Float[Array, "m c"], Index], Carry]  # a slab, and its first column


class Whitened(NamedTuple):
    """L⁻¹ M and L⁻¹ for L = L₁ L₂ …, of as many factors as there were passes."""

    inverse: Float[Array, "m m"]
    held: Float[Array, "m c"] | None  # L⁻¹ M, where the plan holds it
    factors: tuple[Float[Array, "m m"], ...]  # of all passes, I of those to come; the last first

    def forward(self, right: Float[Array, "m c"]) -> Float[Array, "m c"]:
        """L⁻¹ B, factor by factor: with the inverse in place of substitution digits are lost."""
        for factor in reversed(self.factors):
            right = forward(factor, right)
        return right

    def backward(self, z: Float[Array, " m"]) -> Float[Array, " m"]:
        """L⁻ᵀ z."""
        for factor in self.factors:
            z = jax.scipy.linalg.solve_triangular(factor, z, trans=1, lower=True)
        return z


@dataclass(frozen=True)
class Slabs(ABC):
    """M, in slabs of columns."""

    rows: Sequence[Rows]
    plan: Plan

    @property
    @abstractmethod
    def side(self) -> int:
        """m, the number of rows of M."""

    @abstractmethod
    def _make(self, work: Work[Carry], carry: Carry) -> Carry:
        """Work on the slabs one after another, made but not whitened."""

    @abstractmethod
    def right_side(self, whitened: Whitened, b: Float[Array, " n"]) -> Float[Array, " m"]:
        """c, with which x is the `solution` of (L⁻¹ (M Mᵀ + λI) L⁻ᵀ)⁻¹ c."""

    @abstractmethod
    def solution(self, whitened: Whitened, z: Float[Array, " m"]) -> Theta:
        """x = argmin |J x − b|² + λ|x|², shaped as θ."""

    @abstractmethod
    def _parts(self) -> Iterator[Float[Array, "m c"]]:
        """All of M, in the order of its columns."""

    def start(self, passes: int) -> Whitened:
        """M before the first of so many passes."""
        identity = jnp.eye(self.side)
        held = jnp.concatenate(list(self._parts()), axis=1) if self._is_whole else None
        return Whitened(identity, held, (identity,) * passes)

    def whiten(self, whitened: Whitened, factor: Float[Array, "m m"]) -> Whitened:
        """From the left by the inverse of one more factor."""
        inverse, held, factors = whitened
        if held is not None:
            held = forward(factor, held)
        return Whitened(forward(factor, inverse), held, (factor, *factors)[: len(factors)])

    def gram(self, whitened: Whitened, damping: Float[Array, ""]) -> Float[Array, "m m"]:
        """L⁻¹ (M Mᵀ + λI) L⁻ᵀ."""

        def add(total: Array, slab: Array, first: Index) -> Array:
            return add_square(total, [Dense(slab)], self.plan)

        total = summed(self.fold(whitened, add, jnp.zeros((self.side, self.side))), self.plan)
        return mirror(add(total, jnp.sqrt(damping) * whitened.inverse, 0))

    def fold(self, whitened: Whitened, work: Work[Carry], carry: Carry) -> Carry:
        """Work on the slabs one after another, whitened."""
        if whitened.held is not None:
            return work(carry, whitened.held, 0)

        def whiten(carry: Carry, slab: Array, first: Index) -> Carry:
            return work(carry, whitened.forward(slab), first)

        return self._make(whiten, carry)

    @property
    def _is_whole(self) -> bool:
        return self.plan.held and self.plan.working_bytes is None


class Columns(Slabs):
    """M = J: of all residuals the gradients by some parameters.

    On several devices each has all rows, and its share of the parameters.
    """

    @property
    def side(self) -> int:
        return sum(source.count for source in self.rows)

    def right_side(self, whitened: Whitened, b: Float[Array, " n"]) -> Float[Array, " n"]:
        """L⁻¹ b."""
        return whitened.forward(b[:, None])[:, 0]

    def solution(self, whitened: Whitened, z: Float[Array, " n"]) -> Theta:
        """(L⁻¹ J)ᵀ z."""

        def fill(vector: Array, slab: Array, first: Index) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(vector, z @ slab, first, 0)

        mine = self.fold(whitened, fill, jnp.zeros(sum(s.size for s in self._shapes)))
        ends = list(accumulate(shape.size for shape in self._shapes))
        merged = jax.eval_shape(lambda: merge_small(self.rows[0].blocks(0)))
        vectors = [
            self._gathered(part)[: block.size]
            for part, block in zip(jnp.split(mine, ends[:-1]), merged, strict=True)
        ]
        return unmerged(vectors, jax.eval_shape(self.rows[0].blocks, 0))

    def _gathered(self, mine: Float[Array, " q"]) -> Float[Array, " r"]:
        """The part of a vector that belongs to one array, of all devices: with some padding."""
        return mine if self.plan.mesh is None else jax.lax.all_gather(mine, DEVICES, tiled=True)

    @property
    def _shapes(self) -> list[Block]:
        return jax.eval_shape(lambda: all_rows(self.rows[0], 0, self.plan))

    def _parts(self) -> Iterator[Float[Array, "n c"]]:
        for k, shape in enumerate(self._shapes):
            yield self._slab(k, 0, shape.shape[1])

    def _make(self, work: Work[Carry], carry: Carry) -> Carry:
        top = 0
        for k, shape in enumerate(self._shapes):
            outputs, each = shape.shape[1], shape.size // shape.shape[1]
            most = self.plan.working_bytes or FLOAT * self.side * shape.size
            width = max(1, min(outputs, most // (FLOAT * self.side * each)))

            def take(start: Index, count: int, carry: Carry, k=k, top=top, each=each) -> Carry:
                return work(carry, self._slab(k, start, count), top + start * each)

            whole, rest = divmod(outputs, width)
            carry = loop(whole, lambda i, c, take=take, w=width: take(i * w, w, c), carry)
            carry = take(whole * width, rest, carry) if rest else carry
            top += shape.size
        return carry

    def _slab(self, k: int, start: Index, count: int) -> Float[Array, "n c"]:
        """The gradients of all rows by some outputs of the k-th array."""
        return jnp.concatenate([self._some(source, k, start, count) for source in self.rows])

    def _some(self, source: Rows, k: int, start: Index, count: int) -> Float[Array, "n c"]:
        def part(i: Index) -> Array:
            return all_rows(source, i, self.plan)[k].some_outputs(start, count).matrix()

        def fill(i: Index, all_rows: Array) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(all_rows, part(i), source.start(i), 0)

        if source.chunks == 1:
            return part(0)
        shape = self._shapes[k]
        width = shape.size // shape.shape[1] * count
        return loop(source.chunks, fill, jnp.zeros((source.count, width)))


class TransposedRows(Slabs):
    """M = Jᵀ: of some residuals the gradients by all parameters, as columns.

    On several devices each has its rows.
    """

    @property
    def side(self) -> int:
        return self.rows[0].parameters

    def right_side(self, whitened: Whitened, b: Float[Array, " n"]) -> Float[Array, " p"]:
        """L⁻¹ Jᵀ b."""

        def add(total: Array, slab: Array, first: Index) -> Array:
            return total + slab @ jax.lax.dynamic_slice_in_dim(b, first, slab.shape[1])

        if whitened.held is not None:
            return summed(whitened.held @ self._mine(b), self.plan)
        return summed(self.fold(whitened, add, jnp.zeros(self.side)), self.plan)

    def solution(self, whitened: Whitened, z: Float[Array, " p"]) -> Theta:
        """L⁻ᵀ z."""
        return split(whitened.backward(z), jax.eval_shape(self.rows[0].blocks, 0))

    def _mine(self, b: Float[Array, " n"]) -> Float[Array, " c"]:
        """What of a vector belongs to this device's rows, where these are held."""
        parts = [
            jax.lax.dynamic_slice_in_dim(b, self._first(source, top, 0), self._width(source))
            for source, top in self._tops()
        ]
        return jnp.concatenate(parts)

    def _tops(self) -> list[tuple[Rows, int]]:
        """The rows of each condition, and where they begin."""
        tops = accumulate((source.count for source in self.rows), initial=0)
        return list(zip(self.rows, tops, strict=False))

    def _first(self, source: Rows, top: int, i: Index) -> Index:
        """Where this device's rows of a chunk begin."""
        mine = 0 if self.plan.mesh is None else jax.lax.axis_index(DEVICES)
        return top + source.start(i) + self._width(source) * mine

    def _width(self, source: Rows) -> int:
        """How many rows of a chunk are this device's."""
        return source.chunk // self.plan.devices

    def _parts(self) -> Iterator[Float[Array, "p c"]]:
        for source in self.rows:
            yield transposed(source.distinct(0))

    def _make(self, work: Work[Carry], carry: Carry) -> Carry:
        for source, top in self._tops():

            def chunk(i: Index, carry: Carry, source: Rows = source, top: int = top) -> Carry:
                return work(carry, transposed(source.distinct(i)), self._first(source, top, i))

            carry = loop(source.chunks, chunk, carry)
        return carry


def slabs(rows: Sequence[Rows], plan: Plan) -> Slabs:
    """J by columns where it has no more rows than columns, and otherwise Jᵀ."""
    columns = Columns(rows, plan)
    return columns if columns.side <= rows[0].parameters else TransposedRows(rows, plan)


def forward(factor: Float[Array, "m m"], right: Float[Array, "m c"]) -> Float[Array, "m c"]:
    """L⁻¹ B by substitution."""
    return jax.lax.linalg.triangular_solve(factor, right, left_side=True, lower=True)
