"""Products of a Jacobian that is kept in blocks and never concatenated as a whole.

There is a row block for each condition, and in it a block for each parameter leaf, of shape
(n, *leaf.shape): row i is the gradient of residual i.
"""

from collections.abc import Sequence
from itertools import accumulate

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

Blocks = PyTree[Float[Array, "n ..."]]  # the rows of one condition: one block per parameter leaf

SYRK_ROWS = 1000  # from here on a GPU's syrk beats its gemm
SMALL_LEAF = 1024  # leaves up to this size are multiplied together: thin products are slow


def jacobian_vector(
    jacobian: Sequence[Blocks], v: PyTree[Float[Array, "..."]]
) -> Float[Array, " n"]:
    """J v."""
    return jnp.concatenate([_rows_vector(blocks, v) for blocks in jacobian])


def vector_jacobian(
    jacobian: Sequence[Blocks], y: Float[Array, " n"]
) -> PyTree[Float[Array, "..."]]:
    """Jᵀ y, shaped like the parameters."""
    ends = list(accumulate(map(row_count, jacobian)))
    parts = [
        jax.tree.map(lambda b, part=part: (part @ _matrix(b)).reshape(b.shape[1:]), blocks)
        for blocks, part in zip(jacobian, jnp.split(y, ends[:-1]), strict=True)
    ]
    return jax.tree.map(lambda *leaves: sum(leaves), *parts)


def kernel(jacobian: Sequence[Blocks]) -> Float[Array, "n n"]:
    """J Jᵀ: its lower triangle, one pair of row blocks at a time, then mirrored."""
    rows = []
    for i, left in enumerate(jacobian):
        pairs = [_product(left, right) for right in jacobian[:i]]
        later = sum(row_count(blocks) for blocks in jacobian[i + 1 :])
        rows.append(
            jnp.concatenate([*pairs, _square(left), jnp.zeros((row_count(left), later))], 1)
        )
    lower = jnp.concatenate(rows)
    return jnp.tril(lower) + jnp.tril(lower, -1).T


def kernel_product(jacobian: Sequence[Blocks], y: Float[Array, "n k"]) -> Float[Array, "n k"]:
    """J (Jᵀ Y), without the kernel."""
    columns = jax.vmap(lambda column: vector_jacobian(jacobian, column), 1, -1)(y)
    return jax.vmap(lambda v: jacobian_vector(jacobian, v), -1, -1)(columns)


def gramian(jacobian: Sequence[Blocks]) -> Float[Array, "p p"]:
    """Jᵀ J, parameters in the order of `jax.flatten_util.ravel_pytree`."""
    return sum((_gramian(blocks) for blocks in jacobian), start=jnp.zeros(()))


def row_count(blocks: Blocks) -> int:
    return len(jax.tree.leaves(blocks)[0])


def _square(blocks: Blocks) -> Float[Array, "n n"]:
    """J Jᵀ of one row block; only its lower triangle is sure to be right."""
    n = row_count(blocks)
    if jax.default_backend() != "gpu" or n < SYRK_ROWS:
        return _product(blocks, blocks)
    total = jnp.zeros((n, n))
    for matrix in _matrices(blocks):
        total = jax.lax.linalg.symmetric_product(matrix, total, beta=1.0)
    return total


def _product(left: Blocks, right: Blocks) -> Float[Array, "n m"]:
    pairs = zip(_matrices(left), _matrices(right), strict=True)
    return sum((a @ b.T for a, b in pairs), start=jnp.zeros(()))


def _gramian(blocks: Blocks) -> Float[Array, "p p"]:
    leaves = [_matrix(block) for block in jax.tree.leaves(blocks)]
    return jnp.block([[a.T @ b for b in leaves] for a in leaves])


def _rows_vector(blocks: Blocks, v: PyTree[Float[Array, "..."]]) -> Float[Array, " n"]:
    products = jax.tree.map(lambda block, leaf: _matrix(block) @ leaf.ravel(), blocks, v)
    return sum(jax.tree.leaves(products), start=jnp.zeros(()))


def _matrices(blocks: Blocks) -> list[Float[Array, "n q"]]:
    """The blocks of a row block as matrices: large leaves as they are, small ones side by side."""
    matrices = [_matrix(block) for block in jax.tree.leaves(blocks)]
    small = [matrix for matrix in matrices if matrix.shape[1] <= SMALL_LEAF]
    large = [matrix for matrix in matrices if matrix.shape[1] > SMALL_LEAF]
    return [*large, jnp.concatenate(small, axis=1)] if small else large


def _matrix(block: Float[Array, "n ..."]) -> Float[Array, "n q"]:
    return block.reshape(len(block), -1)
