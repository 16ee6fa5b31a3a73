"""The gradients of some residuals with respect to one array of parameters.

A Jacobian is kept in blocks and never concatenated as a whole: row blocks, one for each condition,
and in each of them a `Block` for each array W of θ. Every kind of block answers the same questions,
so that kernels and solvers need not know how a layer's gradients are held.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..parallel.devices import DEVICES, Index, loop

SMALL_BLOCK = 1024  # parameters; blocks up to this size are multiplied side by side
ELEMENT_COST = 250  # operations that one element of a product of factors costs in memory traffic
FLOAT = 8  # bytes

Span = tuple[Index, int]  # where some rows start, and how many they are


class Block(eqx.Module):
    """∂rᵢ/∂W for n residuals rᵢ."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """(n, *W.shape)."""

    @abstractmethod
    def matrix(self) -> Float[Array, "n q"]:
        """All gradients, formed, as rows."""

    @abstractmethod
    def times(self, v: Float[Array, "..."]) -> Float[Array, " n"]:
        """⟨∂rᵢ/∂W, v⟩ for each residual."""

    @abstractmethod
    def transposed_times(self, y: Float[Array, " n"]) -> Float[Array, "..."]:
        """Σᵢ yᵢ ∂rᵢ/∂W, shaped like W."""

    @abstractmethod
    def squared_norm(self) -> Float[Array, ""]:
        """The sum of the squares of all gradients."""

    @abstractmethod
    def some_outputs(self, start: Index, count: int) -> "Block":
        """The gradients with respect to W[start : start + count]."""

    @abstractmethod
    def exchanged(self) -> "Block":
        """The same gradients, distributed over devices another way.

        Before, each device has some rows with all outputs of W; after, all rows with some outputs.
        """

    @property
    def forming_operations(self) -> int:
        """The operations that form the gradient of one residual."""
        return 0

    def structured_operations(self, other: "Block") -> float:
        """The operations of one element of self · otherᵀ with no gradient formed.

        Infinity where that is impossible. Memory traffic counts as operations too.
        """
        return math.inf

    def structured_product(self, other: "Block", working_bytes: int | None) -> Float[Array, "n m"]:
        """self · otherᵀ with no gradient formed."""
        raise TypeError(f"{type(self).__name__} has no product of its own")

    def structured_bytes(self, other: "Block", rows: int, columns: int) -> int:
        """The bytes that `structured_product` forms for so many rows and columns."""
        return 0

    def some_rows(self, span: Span) -> "Block":
        if span[1] == len(self):
            return self
        return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, *span), self)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def size(self) -> int:
        """The number of parameters in W."""
        return math.prod(self.shape[1:])

    @property
    def is_formed(self) -> bool:
        return self.forming_operations == 0

    def is_cheaper_structured(self, other: "Block") -> bool:
        """Whether self · otherᵀ costs less with no gradient formed."""
        return self.structured_operations(other) < 2 * self.size

    def product_operations(self, other: "Block") -> float:
        """The operations of one element of self · otherᵀ, the cheaper way."""
        return min(self.structured_operations(other), 2 * self.size)


RowBlock = PyTree[Block]  # some rows of the Jacobian: a block for each array of θ


class Dense(Block):
    """Gradients that are formed."""

    gradients: Float[Array, "n ..."]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.gradients.shape

    def matrix(self) -> Float[Array, "n q"]:
        return self.gradients.reshape(len(self), -1)

    def times(self, v: Float[Array, "..."]) -> Float[Array, " n"]:
        return self.matrix() @ v.ravel()

    def transposed_times(self, y: Float[Array, " n"]) -> Float[Array, "..."]:
        return (y @ self.matrix()).reshape(self.shape[1:])

    def squared_norm(self) -> Float[Array, ""]:
        return jnp.sum(self.gradients**2)

    def some_outputs(self, start: Index, count: int) -> "Dense":
        if count == self.shape[1]:
            return self
        return Dense(jax.lax.dynamic_slice_in_dim(self.gradients, start, count, 1))

    def exchanged(self) -> "Dense":
        return Dense(_split_outputs(self.gradients, 1))


class Factored(Block):
    """Σₛ gₛ zₛᵀ, the gradients of a dense layer's matrix: cotangents gₛ and inputs zₛ of streams s.

    The kernel of two of them needs no gradient: K_nm = Σ_st (g_ns · g_mt) (z_ns · z_mt).
    """

    cotangents: Float[Array, "n s out"]
    inputs: Float[Array, "n s in"]

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.cotangents.shape[0], self.cotangents.shape[2], self.inputs.shape[2]

    @property
    def streams(self) -> int:
        return self.cotangents.shape[1]

    def matrix(self) -> Float[Array, "n q"]:
        formed = jnp.einsum("nso,nsi->noi", self.cotangents, self.inputs)
        return formed.reshape(len(formed), -1)

    def times(self, v: Float[Array, "out in"]) -> Float[Array, " n"]:
        return jnp.einsum("nso,oi,nsi->n", self.cotangents, v, self.inputs)

    def transposed_times(self, y: Float[Array, " n"]) -> Float[Array, "out in"]:
        return jnp.einsum("n,nso,nsi->oi", y, self.cotangents, self.inputs)

    def squared_norm(self) -> Float[Array, ""]:
        cotangents = jnp.einsum("nso,nto->nst", self.cotangents, self.cotangents)
        return jnp.sum(cotangents * jnp.einsum("nsi,nti->nst", self.inputs, self.inputs))

    def some_outputs(self, start: Index, count: int) -> "Factored":
        if count == self.shape[1]:
            return self
        cotangents = jax.lax.dynamic_slice_in_dim(self.cotangents, start, count, 2)
        return Factored(cotangents, self.inputs)

    def exchanged(self) -> "Factored":
        inputs = jax.lax.all_gather(self.inputs, DEVICES, tiled=True)
        return Factored(_split_outputs(self.cotangents, 2), inputs)

    @property
    def forming_operations(self) -> int:
        return 2 * self.streams * self.size

    def structured_operations(self, other: Block) -> float:
        if not isinstance(other, Factored):
            return math.inf
        _, out, into = self.shape
        return self.streams * other.streams * (2 * (out + into) + ELEMENT_COST)

    def structured_bytes(self, other: Block, rows: int, columns: int) -> int:
        assert isinstance(other, Factored)
        return 2 * FLOAT * self.streams * other.streams * rows * columns

    def structured_product(self, other: Block, working_bytes: int | None) -> Float[Array, "n m"]:
        """self · otherᵀ from factors, for as many rows at once as `working_bytes` allows."""
        assert isinstance(other, Factored)
        n, m = len(self), len(other)

        def product(left: Factored) -> Float[Array, "a m"]:
            cotangents = jnp.einsum("nso,mto->sntm", left.cotangents, other.cotangents)
            inputs = jnp.einsum("nsi,mti->sntm", left.inputs, other.inputs)
            return (cotangents * inputs).sum((0, 2))

        row_bytes = self.structured_bytes(other, 1, m)
        at_once = n if working_bytes is None else max(1, min(n, working_bytes // row_bytes))
        if at_once == n:
            return product(self)

        def fill(i: Index, total: Array) -> Array:
            start = jnp.minimum(i * at_once, n - at_once)
            some = self.some_rows((start, at_once))
            assert isinstance(some, Factored)
            part = product(some)
            return jax.lax.dynamic_update_slice_in_dim(total, part, start, 0)

        return loop(-(-n // at_once), fill, jnp.zeros((n, m)))


def is_worth_factoring(row: Factored) -> bool:
    """Whether the factors of one residual, (s, out) and (s, in), are smaller than their product."""
    (streams, out), (_, into) = row.cotangents.shape, row.inputs.shape
    return out * into > SMALL_BLOCK and streams * (out + into) < out * into


def blocks_of(rows: RowBlock) -> list[Block]:
    """The block of each array of θ, in the order of `jax.tree.leaves`."""
    return jax.tree.leaves(rows, is_leaf=is_block)


def is_block(value: object) -> bool:
    return isinstance(value, Block)


def merge_small(rows: RowBlock) -> list[Block]:
    """Large blocks as they are, small ones side by side: thin products are slow."""
    blocks = blocks_of(rows)
    small = [block.matrix() for block in blocks if block.size <= SMALL_BLOCK]
    large = [block for block in blocks if block.size > SMALL_BLOCK]
    return [*large, Dense(jnp.concatenate(small, axis=1))] if small else large


def unmerged(vectors: Sequence[Array], rows: RowBlock) -> PyTree[Array]:
    """Vectors in the order of `merge_small`, as the arrays of θ."""
    blocks = blocks_of(rows)
    sizes = [block.size for block in blocks if block.size <= SMALL_BLOCK]
    large = iter(vectors)
    small = iter(jnp.split(vectors[-1], np.cumsum(sizes)[:-1]) if sizes else [])
    found = [next(small if block.size <= SMALL_BLOCK else large) for block in blocks]
    return _shaped(found, rows)


def split(vector: Float[Array, " p"], rows: RowBlock) -> PyTree[Array]:
    """A vector in the order of `blocks_of`, as the arrays of θ."""
    sizes = [block.size for block in blocks_of(rows)]
    return _shaped(jnp.split(vector, np.cumsum(sizes)[:-1]), rows)


def _shaped(vectors: Sequence[Array], rows: RowBlock) -> PyTree[Array]:
    pairs = zip(vectors, blocks_of(rows), strict=True)
    leaves = [vector.reshape(block.shape[1:]) for vector, block in pairs]
    return jax.tree.unflatten(jax.tree.structure(rows, is_leaf=is_block), leaves)


def _split_outputs(array: Array, axis: int) -> Array:
    missing = -array.shape[axis] % jax.lax.axis_size(DEVICES)
    padded = jnp.pad(array, [(0, missing if i == axis else 0) for i in range(array.ndim)])
    return jax.lax.all_to_all(padded, DEVICES, axis, 0, tiled=True)
