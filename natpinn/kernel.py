"""Products of a Jacobian that is kept in blocks, one per parameter leaf and never concatenated.

A block has shape (n, *leaf.shape): row i is the gradient of residual i.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

Blocks = PyTree[Float[Array, "n ..."]]

SYRK_ROWS = 1000  # from here on a GPU's syrk beats its gemm


def jacobian_vector(blocks: Blocks, v: PyTree[Float[Array, "..."]]) -> Float[Array, " n"]:
    """J v."""
    products = jax.tree.map(lambda block, leaf: _rows(block) @ leaf.ravel(), blocks, v)
    return sum(jax.tree.leaves(products), start=jnp.zeros(()))


def vector_jacobian(blocks: Blocks, y: Float[Array, " n"]) -> PyTree[Float[Array, "..."]]:
    """Jᵀ y, shaped like the parameters."""
    return jax.tree.map(lambda block: (y @ _rows(block)).reshape(block.shape[1:]), blocks)


def kernel(blocks: Blocks) -> Float[Array, "n n"]:
    """J Jᵀ."""
    leaves = [_rows(block) for block in jax.tree.leaves(blocks)]
    n = len(leaves[0])
    if jax.default_backend() != "gpu" or n < SYRK_ROWS:
        return sum((rows @ rows.T for rows in leaves), start=jnp.zeros(()))
    total = jnp.zeros((n, n))
    for rows in leaves:
        total = jax.lax.linalg.symmetric_product(rows, total, beta=1.0)
    return jnp.tril(total) + jnp.tril(total, -1).T


def kernel_product(blocks: Blocks, y: Float[Array, "n k"]) -> Float[Array, "n k"]:
    """J (Jᵀ Y), without the kernel."""
    leaves = [_rows(block) for block in jax.tree.leaves(blocks)]
    return sum((rows @ (rows.T @ y) for rows in leaves), start=jnp.zeros(()))


def gramian(blocks: Blocks) -> Float[Array, "p p"]:
    """Jᵀ J, parameters in the order of `jax.flatten_util.ravel_pytree`."""
    leaves = [_rows(block) for block in jax.tree.leaves(blocks)]
    return jnp.block([[a.T @ b for b in leaves] for a in leaves])


def _rows(block: Float[Array, "n ..."]) -> Float[Array, "n q"]:
    return block.reshape(len(block), -1)
