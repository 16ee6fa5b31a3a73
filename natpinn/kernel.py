"""Products of a Jacobian that is kept in blocks and never concatenated as a whole.

There is a row block for each condition, and in it a block for each parameter leaf: an array of
shape (n, *leaf.shape), whose row i is the gradient of residual i, or the `Factors` of such an
array. From factors the kernel of a dense layer needs no gradient at all,

    K_nm = Σ_st (g_ns · g_mt) (z_ns · z_mt),

which is used wherever it takes fewer operations than multiplying the gradients.
"""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .layers import Factors

Block = Float[Array, "n ..."] | Factors
Blocks = PyTree[Block]  # the rows of one condition

SMALL_LEAF = 1024  # leaves up to this size are multiplied side by side: thin products are slow
SYRK_ROWS = 1000  # from here on a GPU's syrk beats its gemm
HALVINGS = 3  # of a lower triangle that is not left to syrk
SMALLEST_HALF = 64  # rows; smaller blocks would waste more than they save
ELEMENT_COST = 250  # operations that one element of a product of factors costs in memory traffic


def worth_factoring(factors: Factors) -> bool:
    """Whether the factors at one point, (s, out) and (s, in), are smaller than their product."""
    (streams, out), (_, into) = factors.cotangents.shape, factors.inputs.shape
    return out * into > SMALL_LEAF and streams * (out + into) < out * into


def jacobian_vector(
    jacobian: Sequence[Blocks], v: PyTree[Float[Array, "..."]]
) -> Float[Array, " n"]:
    """J v."""
    directions = jax.tree.leaves(v)
    return jnp.concatenate(
        [_sum(map(_block_vector, _blocks(rows), directions)) for rows in jacobian]
    )


def vector_jacobian(
    jacobian: Sequence[Blocks], y: Float[Array, " n"]
) -> PyTree[Float[Array, "..."]]:
    """Jᵀ y, shaped like the parameters."""
    ends = list(accumulate(map(row_count, jacobian)))
    parts = [
        [_vector_block(part, block) for block in _blocks(rows)]
        for rows, part in zip(jacobian, jnp.split(y, ends[:-1]), strict=True)
    ]
    structure = jax.tree.structure(jacobian[0], is_leaf=_is_factors)
    return structure.unflatten([_sum(leaves) for leaves in zip(*parts, strict=True)])


def kernel(jacobian: Sequence[Blocks]) -> Float[Array, "n n"]:
    """J Jᵀ: its lower triangle, one pair of row blocks at a time, then mirrored."""
    strips = []
    for i, left in enumerate(jacobian):
        pairs = [_product(left, right) for right in jacobian[:i]]
        later = sum(map(row_count, jacobian[i + 1 :]))
        strips.append(_pad_columns(jnp.concatenate([*pairs, _square(left)], 1), later))
    lower = jnp.concatenate(strips)
    return jnp.tril(lower) + jnp.tril(lower, -1).T


def kernel_product(jacobian: Sequence[Blocks], y: Float[Array, "n k"]) -> Float[Array, "n k"]:
    """J (Jᵀ Y), without the kernel."""
    columns = jax.vmap(lambda column: vector_jacobian(jacobian, column), 1, -1)(y)
    return jax.vmap(lambda v: jacobian_vector(jacobian, v), -1, -1)(columns)


def gramian(jacobian: Sequence[Blocks]) -> Float[Array, "p p"]:
    """Jᵀ J, parameters in the order of `jax.flatten_util.ravel_pytree`."""

    def of_rows(rows: Blocks) -> Float[Array, "p p"]:
        matrices = [_matrix(block) for block in _blocks(rows)]
        return jnp.block([[a.T @ b for b in matrices] for a in matrices])

    return _sum(map(of_rows, jacobian))


def row_count(rows: Blocks) -> int:
    return len(_blocks(rows)[0])


def _product(left: Blocks, right: Blocks) -> Float[Array, "n m"]:
    """J_left J_rightᵀ."""
    pairs = zip(_merge_small(left), _merge_small(right), strict=True)
    return _sum(_block_product(a, b) for a, b in pairs)


def _square(rows: Blocks) -> Float[Array, "n n"]:
    """J Jᵀ of one row block; only its lower triangle is sure to be right."""
    n, blocks = row_count(rows), _merge_small(rows)
    structured = [block for block in blocks if _structure_pays(block, block)]
    explicit = [_matrix(block) for block in blocks if not _structure_pays(block, block)]
    on_gpu = jax.default_backend() == "gpu"
    halvings = HALVINGS if not on_gpu or n >= SYRK_ROWS else 0

    def structured_product(r: slice, c: slice) -> Float[Array, "a b"]:
        return _sum(_factor_product(factors[r], factors[c]) for factors in structured)

    def explicit_product(r: slice, c: slice) -> Float[Array, "a b"]:
        return _sum(matrix[r] @ matrix[c].T for matrix in explicit)

    total = _lower_triangle(0, n, structured_product, halvings)
    if not on_gpu or n < SYRK_ROWS:
        return total + _lower_triangle(0, n, explicit_product, halvings)
    for matrix in explicit:
        total = jax.lax.linalg.symmetric_product(matrix, total, beta=1.0)
    return total


def _lower_triangle(
    start: int, stop: int, product: Callable[[slice, slice], Float[Array, "a b"]], halvings: int
) -> Float[Array, "n n"]:
    """The lower triangle of a square matrix, by halves: three quarters of it, then of those.

    Three halvings cost 9/16 of the square, in blocks of only four different sizes.
    """
    n = stop - start
    if halvings == 0 or n < 2 * SMALLEST_HALF:
        rows = slice(start, stop)
        return jnp.broadcast_to(product(rows, rows), (n, n))
    middle = start + n // 2
    corner = product(slice(middle, stop), slice(start, middle))
    upper = _lower_triangle(start, middle, product, halvings - 1)
    lower = _lower_triangle(middle, stop, product, halvings - 1)
    below = jnp.concatenate([jnp.broadcast_to(corner, (stop - middle, middle - start)), lower], 1)
    return jnp.concatenate([_pad_columns(upper, stop - middle), below])


def _block_product(left: Block, right: Block) -> Float[Array, "n m"]:
    if _structure_pays(left, right):
        return _factor_product(left, right)
    return _matrix(left) @ _matrix(right).T


def _structure_pays(left: Block, right: Block) -> bool:
    """Whether products of factors cost less than products of gradients, per pair of rows."""
    if not (isinstance(left, Factors) and isinstance(right, Factors)):
        return False
    _, out, into = left.shape
    return left.streams * right.streams * (2 * (out + into) + ELEMENT_COST) < 2 * out * into


def _factor_product(left: Any, right: Any) -> Float[Array, "n m"]:
    """Σ_st (g_ns · g_mt) (z_ns · z_mt)."""
    cotangents = jnp.einsum("nso,mto->sntm", left.cotangents, right.cotangents)
    inputs = jnp.einsum("nsi,mti->sntm", left.inputs, right.inputs)
    return (cotangents * inputs).sum((0, 2))


def _block_vector(block: Block, v: Float[Array, "..."]) -> Float[Array, " n"]:
    if isinstance(block, Factors):
        return jnp.einsum("nso,oi,nsi->n", block.cotangents, v, block.inputs)
    return _matrix(block) @ v.ravel()


def _vector_block(y: Float[Array, " n"], block: Block) -> Float[Array, "..."]:
    if isinstance(block, Factors):
        return jnp.einsum("n,nso,nsi->oi", y, block.cotangents, block.inputs)
    return (y @ _matrix(block)).reshape(block.shape[1:])


def _merge_small(rows: Blocks) -> list[Block]:
    """The blocks of a row block: large leaves as they are, small ones side by side."""
    blocks = _blocks(rows)
    small = [_matrix(block) for block in blocks if _size(block) <= SMALL_LEAF]
    large = [block for block in blocks if _size(block) > SMALL_LEAF]
    return [*large, jnp.concatenate(small, axis=1)] if small else large


def _matrix(block: Block) -> Float[Array, "n q"]:
    explicit = block.explicit if isinstance(block, Factors) else block
    return explicit.reshape(len(explicit), -1)


def _size(block: Block) -> int:
    return math.prod(block.shape[1:])


def _blocks(rows: Blocks) -> list[Block]:
    return jax.tree.leaves(rows, is_leaf=_is_factors)


def _is_factors(value: Any) -> bool:
    return isinstance(value, Factors)


def _pad_columns(matrix: Float[Array, "n m"], columns: int) -> Float[Array, "n k"]:
    return jnp.pad(matrix, ((0, 0), (0, columns)))


def _sum(arrays: Any) -> Float[Array, "..."]:
    return sum(arrays, start=jnp.zeros(()))
