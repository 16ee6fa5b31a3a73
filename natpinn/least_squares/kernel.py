"""Products of a Jacobian with itself: J Jᵀ, JᵀJ and J(JᵀY), in blocks, as a plan says.

A pair of blocks is multiplied from their structure where that takes fewer operations than
multiplying gradients. Otherwise gradients are formed, all at once or for so many outputs at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import TypeVar, TypeVarTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..parallel.devices import DEVICES, Index, loop
from ..parallel.plan import Plan
from .blocks import FLOAT, Block, Dense, RowBlock, Span, blocks_of, is_block, merge_small
from .cost import TILES, lower_triangle
from .rows import Rows

SYRK_ROWS = 1000  # from here on a GPU's syrk beats its gemm
SMALLEST_TILE = 32  # rows; smaller ones would waste more than they save

Carry = TypeVar("Carry")
Tree = TypeVar("Tree")
Values = TypeVarTuple("Values")


def jacobian_vector(rows: RowBlock, v: PyTree[Float[Array, "..."]]) -> Float[Array, " n"]:
    """J v."""
    parts = zip(blocks_of(rows), jax.tree.leaves(v), strict=True)
    return sum((block.times(leaf) for block, leaf in parts), start=jnp.zeros(()))


def vector_jacobian(rows: RowBlock, y: Float[Array, " n"]) -> PyTree[Float[Array, "..."]]:
    """Jᵀ y, shaped like the parameters."""
    return jax.tree.map(lambda block: block.transposed_times(y), rows, is_leaf=is_block)


def kernel(rows: Sequence[Rows], plan: Plan) -> Float[Array, "n n"]:
    """J Jᵀ: its lower triangle, one pair of row chunks at a time, then mirrored.

    On several devices each has its rows and all parameters. Chunks are exchanged so that each has
    all rows and its share of the parameters, and the kernels that these give are summed.
    """
    starts = [0, *accumulate(r.count for r in rows)]
    total = jnp.zeros((starts[-1], starts[-1]))

    def fill(total: Array, left: Rows, top: int, right: Rows, first: int) -> Array:
        def strip(i: Index, total: Array) -> Array:
            mine = all_rows(left, i, plan)

            def pair(j: Index, total: Array) -> Array:
                product = _product(mine, all_rows(right, j, plan), plan)
                corner = (top + left.start(i), first + right.start(j))
                return jax.lax.dynamic_update_slice(total, product, corner)

            if left is not right:
                return loop(right.chunks, pair, total)
            if left.chunks > 1:
                total = jax.lax.fori_loop(0, i, pair, total)
            corner = (top + left.start(i),) * 2
            n = len(mine[0])
            square = add_square(jnp.zeros((n, n)), mine, plan)
            return jax.lax.dynamic_update_slice(total, square, corner)

        return loop(left.chunks, strip, total)

    for a, b in lower_triangle(len(rows)):
        total = fill(total, rows[a], starts[a], rows[b], starts[b])
    return mirror(summed(total, plan))


def kernel_times(rows: Sequence[Rows], y: Float[Array, "n k"], plan: Plan) -> Float[Array, "n k"]:
    """J (Jᵀ Y) in two passes over the rows: 4NPk operations, and no kernel."""
    on_devices = plan.mesh is not None
    starts = [0, *accumulate(r.count for r in rows)]
    shapes = jax.eval_shape(lambda: merge_small(rows[0].blocks(0)))
    columns = [jnp.zeros((block.size, y.shape[1])) for block in shapes]

    def share(source: Rows, top: int, i: Index) -> Float[Array, "c k"]:
        """The rows of Y that belong to this device's rows of a chunk."""
        here = source.chunk // (jax.lax.axis_size(DEVICES) if on_devices else 1)
        offset = here * jax.lax.axis_index(DEVICES) if on_devices else 0
        return jax.lax.dynamic_slice_in_dim(y, top + source.start(i) + offset, here)

    def gather(source: Rows, top: int) -> Callable[[Index, list[Array]], list[Array]]:
        def add(i: Index, columns: list[Array]) -> list[Array]:
            mine = share(source, top, i)

            def into(total: Array, formed: list[Array], first: Index) -> Array:
                return _add_at(total, formed[0].T @ mine, first, 0)

            blocks = merge_small(source.distinct(i))
            return [_over_outputs([b], into, c, plan) for b, c in zip(blocks, columns, strict=True)]

        return add

    def scatter(source: Rows, top: int) -> Callable[[Index, Array], Array]:
        def fill(i: Index, result: Array) -> Array:
            blocks = merge_small(source.blocks(i))
            total = jnp.zeros((len(blocks[0]), y.shape[1]))
            for block, column in zip(blocks, columns, strict=True):

                def onto(
                    total: Array, formed: list[Array], first: Index, c: Array = column
                ) -> Array:
                    part = jax.lax.dynamic_slice_in_dim(c, first, formed[0].shape[1])
                    return total + formed[0] @ part

                total = _over_outputs([block], onto, total, plan)
            total = jax.lax.all_gather(total, DEVICES, tiled=True) if on_devices else total
            return jax.lax.dynamic_update_slice_in_dim(result, total, top + source.start(i), 0)

        return fill

    for source, top in zip(rows, starts, strict=False):
        columns = loop(source.chunks, gather(source, top), columns)
    columns = summed(columns, plan)
    result = jnp.zeros_like(y)
    for source, top in zip(rows, starts, strict=False):
        result = loop(source.chunks, scatter(source, top), result)
    return result


def gramian(rows: Sequence[Rows], plan: Plan) -> Float[Array, "p p"]:
    """Jᵀ J, parameters in the order of `jax.flatten_util.ravel_pytree`."""

    def add_rows(total: Float[Array, "p p"], blocks: RowBlock) -> Float[Array, "p p"]:
        return add_square(total, [Dense(transposed(blocks))], replace(plan, working_bytes=None))

    def add(source: Rows) -> Callable[[Index, Array], Array]:
        return lambda i, total: add_rows(total, source.distinct(i))

    p = rows[0].parameters
    total = jnp.zeros((p, p))
    for source in rows:
        total = loop(source.chunks, add(source), total)
    return mirror(summed(total, plan))


def trace(rows: Sequence[Rows], plan: Plan) -> Float[Array, ""]:
    """tr J Jᵀ, the sum of the squared norms of all gradients."""

    def add(source: Rows) -> Callable[[Index, Array], Array]:
        def norms(i: Index, total: Array) -> Array:
            return total + sum(block.squared_norm() for block in blocks_of(source.distinct(i)))

        return norms

    total = jnp.zeros(())
    for source in rows:
        total = loop(source.chunks, add(source), total)
    return summed(total, plan)


def all_rows(source: Rows, i: Index, plan: Plan) -> list[Block]:
    """A chunk of rows, small blocks merged; each of several devices has a share of the outputs."""
    merged = merge_small(source.blocks(i))
    return [block.exchanged() for block in merged] if plan.mesh is not None else merged


def transposed(blocks: RowBlock) -> Float[Array, "p n"]:
    """Jᵀ of some rows, all gradients formed."""
    columns = jnp.concatenate([block.matrix() for block in blocks_of(blocks)], 1).T
    return jax.lax.optimization_barrier(columns)  # else products read them with strides


def _product(left: Sequence[Block], right: Sequence[Block], plan: Plan) -> Float[Array, "n m"]:
    """J_left J_rightᵀ."""
    total = jnp.zeros((len(left[0]), len(right[0])))
    for a, b in zip(left, right, strict=True):
        total, a, b = _in_turn(total, a, b)
        if a.is_cheaper_structured(b):
            total = total + a.structured_product(b, plan.working_bytes)
        else:
            total = _over_outputs([a, b], _add_product, total, plan)
    return total


def _add_product(total: Array, formed: list[Array], _: Index) -> Array:
    left, right = formed
    return total + left @ right.T


def add_square(
    total: Float[Array, "n n"], blocks: Sequence[Block], plan: Plan
) -> Float[Array, "n n"]:
    """Add J Jᵀ of one row chunk; only the lower triangle of the sum is sure to be right."""
    has_syrk = plan.backend == "gpu" and len(total) >= SYRK_ROWS

    def add_formed(total: Array, formed: list[Array], _: Index) -> Array:
        (matrix,) = formed
        if has_syrk:
            return jax.lax.linalg.symmetric_product(matrix, total, beta=1.0)
        rows = Dense(matrix)
        return _add_triangle(
            total, lambda r, c: rows.some_rows(r).matrix() @ rows.some_rows(c).matrix().T, plan
        )

    for block in blocks:
        total, block = _in_turn(total, block)
        if block.is_cheaper_structured(block):
            total = _add_triangle(total, partial(_tile, block, plan), plan)
        else:
            total = _over_outputs([block], add_formed, total, plan)
    return total


def _tile(block: Block, plan: Plan, rows: Span, columns: Span) -> Float[Array, "a b"]:
    """A part of the product of a block with itself."""
    left, right = block.some_rows(rows), block.some_rows(columns)
    return left.structured_product(right, plan.working_bytes)


def _add_triangle(
    total: Float[Array, "n n"],
    product: Callable[[Span, Span], Float[Array, "a b"]],
    plan: Plan,
) -> Float[Array, "n n"]:
    """Add a product to a lower triangle, which costs 9/16 of the square with eight rows of tiles.

    On a GPU a row of tiles is one product. On a CPU each tile is, in a loop: the compiler there
    would copy the rows of all products before the first of them.
    """
    n, on_gpu = len(total), plan.backend == "gpu"
    tiles = max(1, min(TILES, n // SMALLEST_TILE))
    if on_gpu and n < SYRK_ROWS:
        tiles = 1
    side = n // tiles
    done = tiles * side
    if on_gpu:
        for start in range(0, done, side):
            part = product((start, side), (0, start + side))
            total = _add_at(total, part, start, 0)
    else:
        corners = jnp.array(list(lower_triangle(tiles))) * side

        def add_tile(t: Index, total: Array) -> Array:
            i, j = corners[t]
            return _add_at(total, product((i, side), (j, side)), i, j)

        total = loop(len(corners), add_tile, total)
    return _add_at(total, product((done, n - done), (0, n)), done, 0) if done < n else total


def _add_at(total: Float[Array, "n n"], part: Float[Array, "a b"], i: Index, j: Index) -> Array:
    old = jax.lax.dynamic_slice(total, (i, j), part.shape)
    return jax.lax.dynamic_update_slice(total, old + part, (i, j))


def _over_outputs(
    blocks: Sequence[Block],
    work: Callable[[Carry, list[Array], Index], Carry],
    carry: Carry,
    plan: Plan,
) -> Carry:
    """Work on the gradients of one array of parameters, formed for so many outputs at once.

    `work` gets them as matrices, and the number of the first parameter that they belong to.
    """
    outputs = blocks[0].shape[1]
    width = outputs_at_once(blocks, plan.working_bytes)
    size = blocks[0].size // outputs

    def take(start: Index, count: int, carry: Carry) -> Carry:
        formed = [block.some_outputs(start, count).matrix() for block in blocks]
        return work(carry, formed, start * size)

    whole, rest = divmod(outputs, width)
    carry = loop(whole, lambda i, carry: take(i * width, width, carry), carry)
    return take(whole * width, rest, carry) if rest else carry


def outputs_at_once(blocks: Sequence[Block], working_bytes: int | None) -> int:
    """The number of outputs whose gradients may be formed at once."""
    outputs = blocks[0].shape[1]
    rows = sum(len(block) for block in blocks if not block.is_formed)
    if working_bytes is None or rows == 0:
        return outputs
    return max(1, min(outputs, working_bytes // (FLOAT * rows * (blocks[0].size // outputs))))


def summed(tree: Tree, plan: Plan) -> Tree:
    """The sum over all devices."""
    return tree if plan.mesh is None else jax.lax.psum(tree, DEVICES)


def _in_turn(*values: *Values) -> tuple[*Values]:
    """The same values behind a barrier, so that the compiler multiplies one block after another."""
    return jax.lax.optimization_barrier(values)


def mirror(lower: Float[Array, "n n"]) -> Float[Array, "n n"]:
    return jnp.tril(lower) + jnp.tril(lower, -1).T
