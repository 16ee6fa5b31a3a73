"""Products of a Jacobian that is kept in blocks and never concatenated as a whole.

There are row blocks for each condition, and in them a block for each parameter leaf: an array of
shape (n, *leaf.shape), whose row i is the gradient of residual i, or the `Factors` of such an
array. From factors the kernel of a dense layer needs no gradient at all,

    K_nm = Σ_st (g_ns · g_mt) (z_ns · z_mt),

which is used wherever it takes fewer operations than multiplying the gradients. Otherwise the
gradients of a layer are formed from its factors, all at once or so many outputs at a time.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from ..parallel.devices import DEVICES, loop
from .factoring import Factors

Block = Float[Array, "n ..."] | Factors
Blocks = PyTree[Block]  # the rows of one condition, or some of them
Span = tuple[Any, int]  # where some rows start, and how many they are
SMALL_LEAF = 1024  # leaves up to this size are multiplied side by side: thin products are slow
SYRK_ROWS = 1000  # from here on a GPU's syrk beats its gemm
TILES = 8  # rows of them in a lower triangle that is not left to syrk
SMALLEST_TILE = 32  # rows; smaller ones would waste more than they save
ELEMENT_COST = 250  # operations that one element of a product of factors costs in memory traffic
FLOAT = 8  # bytes


@dataclass(frozen=True)
class Rows:
    """The rows of one condition, a chunk at a time: looked up, or computed when asked for.

    Chunks have equal sizes, so the last one starts early and repeats rows of the one before it. On
    several devices `blocks` gives each device its own share of a chunk's rows.
    """

    count: int  # rows in all, on all devices
    chunk: int  # rows of one chunk, on all devices
    blocks: Callable[[int | Int[Array, ""]], Blocks]
    distinct: Callable[[int | Int[Array, ""]], Blocks]  # the same, with repeated rows as zeros

    @property
    def chunks(self) -> int:
        return -(-self.count // self.chunk)

    def start(self, i: int | Int[Array, ""]) -> int | Int[Array, ""]:
        return 0 if self.chunks == 1 else jnp.minimum(i * self.chunk, self.count - self.chunk)


def worth_factoring(factors: Factors) -> bool:
    """Whether the factors at one point, (s, out) and (s, in), are smaller than their product."""
    (streams, out), (_, into) = factors.cotangents.shape, factors.inputs.shape
    return out * into > SMALL_LEAF and streams * (out + into) < out * into


def structure_pays(left: Block, right: Block) -> bool:
    """Whether products of factors cost less than products of gradients, per pair of rows."""
    return _pair_cost(left, right) < 2 * leaf_size(left)


def jacobian_vector(rows: Blocks, v: PyTree[Float[Array, "..."]]) -> Float[Array, " n"]:
    """J v."""
    return _sum(map(_block_vector, leaves(rows), jax.tree.leaves(v)))


def vector_jacobian(rows: Blocks, y: Float[Array, " n"]) -> PyTree[Float[Array, "..."]]:
    """Jᵀ y, shaped like the parameters."""
    structure = jax.tree.structure(rows, is_leaf=is_factors)
    return structure.unflatten([_vector_block(y, block) for block in leaves(rows)])


def kernel(
    rows: Sequence[Rows], working_bytes: int | None = None, on_devices: bool = False
) -> Float[Array, "n n"]:
    """J Jᵀ: its lower triangle, one pair of row chunks at a time, then mirrored.

    On several devices each has its rows and all parameters. Chunks are exchanged so that each has
    all rows and its share of the parameters, and the kernels that these give are summed.
    """
    starts = [0, *accumulate(r.count for r in rows)]
    total = jnp.zeros((starts[-1], starts[-1]))

    def chunk(source: Rows, i: Any) -> list[Block]:
        merged = merge_small(source.blocks(i))
        return [_exchange(block) for block in merged] if on_devices else merged

    def fill(total: Array, left: Rows, top: int, right: Rows, first: int) -> Array:
        def strip(i: Any, total: Array) -> Array:
            mine = chunk(left, i)

            def pair(j: Any, total: Array) -> Array:
                product = _product(mine, chunk(right, j), working_bytes)
                corner = (top + left.start(i), first + right.start(j))
                return jax.lax.dynamic_update_slice(total, product, corner)

            if left is not right:
                return loop(right.chunks, pair, total)
            if left.chunks > 1:
                total = jax.lax.fori_loop(0, i, pair, total)
            corner = (top + left.start(i),) * 2
            return jax.lax.dynamic_update_slice(total, _square(mine, working_bytes), corner)

        return loop(left.chunks, strip, total)

    for a, left in enumerate(rows):
        for b, right in enumerate(rows[: a + 1]):
            total = fill(total, left, starts[a], right, starts[b])
    total = jax.lax.psum(total, DEVICES) if on_devices else total
    return _mirror(total)


def kernel_times(
    rows: Sequence[Rows],
    y: Float[Array, "n k"],
    working_bytes: int | None = None,
    on_devices: bool = False,
) -> Float[Array, "n k"]:
    """J (Jᵀ Y) in two passes over the rows: 4NPk operations, and no kernel."""
    starts = [0, *accumulate(r.count for r in rows)]
    shapes = jax.eval_shape(lambda: merge_small(rows[0].blocks(0)))
    columns = [jnp.zeros((leaf_size(block), y.shape[1])) for block in shapes]

    def share(source: Rows, top: int, i: Any) -> Float[Array, "c k"]:
        """The rows of Y that belong to this device's rows of a chunk."""
        here = source.chunk // (jax.lax.axis_size(DEVICES) if on_devices else 1)
        offset = here * jax.lax.axis_index(DEVICES) if on_devices else 0
        return jax.lax.dynamic_slice_in_dim(y, top + source.start(i) + offset, here)

    def gather(source: Rows, top: int) -> Callable[[Any, list[Array]], list[Array]]:
        def add(i: Any, columns: list[Array]) -> list[Array]:
            mine = share(source, top, i)

            def into(total: Array, formed: list[Array], first: Any) -> Array:
                return _add_at(total, formed[0].T @ mine, first, 0)

            blocks = merge_small(source.distinct(i))
            return [
                _over_outputs([b], into, c, working_bytes)
                for b, c in zip(blocks, columns, strict=True)
            ]

        return add

    def scatter(source: Rows, top: int) -> Callable[[Any, Array], Array]:
        def fill(i: Any, result: Array) -> Array:
            blocks = merge_small(source.blocks(i))
            total = jnp.zeros((len(blocks[0]), y.shape[1]))
            for block, column in zip(blocks, columns, strict=True):

                def onto(total: Array, formed: list[Array], first: Any, c: Array = column) -> Array:
                    part = jax.lax.dynamic_slice_in_dim(c, first, formed[0].shape[1])
                    return total + formed[0] @ part

                total = _over_outputs([block], onto, total, working_bytes)
            total = jax.lax.all_gather(total, DEVICES, tiled=True) if on_devices else total
            return jax.lax.dynamic_update_slice_in_dim(result, total, top + source.start(i), 0)

        return fill

    for source, top in zip(rows, starts, strict=False):
        columns = loop(source.chunks, gather(source, top), columns)
    columns = jax.lax.psum(columns, DEVICES) if on_devices else columns
    result = jnp.zeros_like(y)
    for source, top in zip(rows, starts, strict=False):
        result = loop(source.chunks, scatter(source, top), result)
    return result


def gramian(rows: Sequence[Rows], on_devices: bool = False) -> Float[Array, "p p"]:
    """Jᵀ J, parameters in the order of `jax.flatten_util.ravel_pytree`."""

    def square(blocks: Blocks) -> Float[Array, "p p"]:
        columns = jnp.concatenate([_matrix(block) for block in leaves(blocks)], 1).T
        return _square([columns], None)

    def add(source: Rows) -> Callable[[Any, Array], Array]:
        return lambda i, total: total + square(source.distinct(i))

    shapes = leaves(jax.eval_shape(rows[0].blocks, 0))
    p = sum(map(leaf_size, shapes))
    total = jnp.zeros((p, p))
    for source in rows:
        total = loop(source.chunks, add(source), total)
    total = jax.lax.psum(total, DEVICES) if on_devices else total
    return _mirror(total)


def assembly_cost(conditions: Sequence[tuple[Blocks, int]]) -> float:
    """The operations of `kernel`, from the blocks of each condition and its number of rows."""
    total = 0.0
    for i, (left, n) in enumerate(conditions):
        for j, (right, m) in enumerate(conditions[: i + 1]):
            pairs = n * (n + 1) / 2 if i == j else n * m
            for a, b in zip(leaves(left), leaves(right), strict=True):
                total += pairs * _pair_cost(a, b)
    return total


def product_cost(conditions: Sequence[tuple[Blocks, int]], columns: int) -> float:
    """The operations of `kernel_times`."""
    total = 0.0
    for blocks, n in conditions:
        for block in leaves(blocks):
            forming = block.streams if isinstance(block, Factors) else 0
            total += 2 * n * leaf_size(block) * 2 * (columns + forming)
    return total


def _pair_cost(left: Block, right: Block) -> float:
    """The operations of one leaf for one pair of rows, the cheaper way."""
    if not (isinstance(left, Factors) and isinstance(right, Factors)):
        return 2 * leaf_size(left)
    _, out, into = left.shape
    structured = left.streams * right.streams * (2 * (out + into) + ELEMENT_COST)
    return min(structured, 2 * leaf_size(left))


def leaves(rows: Blocks) -> list[Block]:
    """A block for each leaf of the parameters."""
    return jax.tree.leaves(rows, is_leaf=is_factors)


def leaf_size(block: Block) -> int:
    return math.prod(block.shape[1:])


def is_factors(value: Any) -> bool:
    return isinstance(value, Factors)


def merge_small(rows: Blocks) -> list[Block]:
    """The blocks of a row block: large leaves as they are, small ones side by side."""
    blocks = leaves(rows)
    small = [_matrix(block) for block in blocks if leaf_size(block) <= SMALL_LEAF]
    large = [block for block in blocks if leaf_size(block) > SMALL_LEAF]
    return [*large, jnp.concatenate(small, axis=1)] if small else large


def _product(
    left: Sequence[Block], right: Sequence[Block], working_bytes: int | None
) -> Float[Array, "n m"]:
    """J_left J_rightᵀ."""
    total = jnp.zeros((len(left[0]), len(right[0])))
    for a, b in zip(left, right, strict=True):
        total, a, b = _in_turn(total, a, b)
        if structure_pays(a, b):
            total = total + _factor_product(a, b, working_bytes)
        else:
            total = _add_by_outputs(total, a, b, lambda t, x, y: t + x @ y.T, working_bytes)
    return total


def _square(blocks: Sequence[Block], working_bytes: int | None) -> Float[Array, "n n"]:
    """J Jᵀ of one row chunk; only its lower triangle is sure to be right."""
    n = len(blocks[0])
    has_syrk = jax.default_backend() == "gpu" and n >= SYRK_ROWS

    def add_square(total: Array, matrix: Array, _: Array) -> Array:
        if has_syrk:
            return jax.lax.linalg.symmetric_product(matrix, total, beta=1.0)
        return _add_triangle(total, lambda r, c: _part(matrix, r) @ _part(matrix, c).T)

    total = jnp.zeros((n, n))
    for block in blocks:
        total, block = _in_turn(total, block)
        if structure_pays(block, block):
            total = _add_triangle(
                total,
                lambda r, c, b=block: _factor_product(_part(b, r), _part(b, c), working_bytes),
            )
        else:
            total = _add_by_outputs(total, block, block, add_square, working_bytes)
    return total


def _add_triangle(
    total: Float[Array, "n n"], product: Callable[[Span, Span], Float[Array, "a b"]]
) -> Float[Array, "n n"]:
    """Add a product to a lower triangle, which costs 9/16 of the square with eight rows of tiles.

    On a GPU a row of tiles is one product. On a CPU each tile is, in a loop: the compiler there
    would copy the rows of all products before the first of them.
    """
    n, on_gpu = len(total), jax.default_backend() == "gpu"
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
        corners = jnp.array([(i, j) for i in range(tiles) for j in range(i + 1)]) * side

        def add_tile(t: Any, total: Array) -> Array:
            i, j = corners[t]
            return _add_at(total, product((i, side), (j, side)), i, j)

        total = loop(len(corners), add_tile, total)
    return _add_at(total, product((done, n - done), (0, n)), done, 0) if done < n else total


def _add_at(total: Float[Array, "n n"], part: Float[Array, "a b"], i: Any, j: Any) -> Array:
    old = jax.lax.dynamic_slice(total, (i, j), part.shape)
    return jax.lax.dynamic_update_slice(total, old + part, (i, j))


def _add_by_outputs(
    total: Float[Array, "n m"],
    left: Block,
    right: Block,
    add: Callable[[Array, Array, Array], Array],
    working_bytes: int | None,
) -> Float[Array, "n m"]:
    """total + J_left J_rightᵀ of one leaf, with the gradients of so many outputs formed at once."""
    blocks = [left] if right is left else [left, right]
    return _over_outputs(
        blocks, lambda total, formed, _: add(total, formed[0], formed[-1]), total, working_bytes
    )


def _over_outputs(
    blocks: Sequence[Block],
    work: Callable[[Any, list[Array], Any], Any],
    carry: Any,
    working_bytes: int | None,
) -> Any:
    """Work on the gradients of one leaf, formed for so many outputs at once.

    `work` gets them as matrices, and the number of the first parameter that they belong to.
    """
    outputs = blocks[0].shape[1]
    width = outputs_at_once(blocks, working_bytes)
    size = leaf_size(blocks[0]) // outputs

    def take(start: Any, count: int, carry: Any) -> Any:
        return work(carry, [_matrix(_outputs(b, start, count)) for b in blocks], start * size)

    whole, rest = divmod(outputs, width)
    carry = loop(whole, lambda i, carry: take(i * width, width, carry), carry)
    return take(whole * width, rest, carry) if rest else carry


def outputs_at_once(blocks: Sequence[Block], working_bytes: int | None) -> int:
    """How many outputs of a leaf may have their gradients formed from factors."""
    outputs = blocks[0].shape[1]
    formed = sum(len(block) for block in blocks if is_factors(block))
    if working_bytes is None or formed == 0:
        return outputs
    return max(1, min(outputs, working_bytes // (FLOAT * formed * blocks[0].shape[2])))


def _factor_product(left: Any, right: Any, working_bytes: int | None) -> Float[Array, "n m"]:
    """Σ_st (g_ns · g_mt) (z_ns · z_mt), for so many rows n at once."""
    n, m = len(left), len(right)

    def product(left: Factors) -> Float[Array, "a m"]:
        cotangents = jnp.einsum("nso,mto->sntm", left.cotangents, right.cotangents)
        inputs = jnp.einsum("nsi,mti->sntm", left.inputs, right.inputs)
        return (cotangents * inputs).sum((0, 2))

    row_bytes = 2 * FLOAT * left.streams * right.streams * m
    at_once = n if working_bytes is None else max(1, min(n, working_bytes // row_bytes))
    if at_once == n:
        return product(left)

    def fill(i: Any, total: Array) -> Array:
        start = jnp.minimum(i * at_once, n - at_once)
        part = product(_part(left, (start, at_once)))
        return jax.lax.dynamic_update_slice_in_dim(total, part, start, 0)

    return loop(-(-n // at_once), fill, jnp.zeros((n, m)))


def _exchange(block: Block) -> Block:
    """From some rows with all outputs of a leaf, to all rows with some outputs: one per device."""
    if isinstance(block, Factors):
        inputs = jax.lax.all_gather(block.inputs, DEVICES, tiled=True)
        return Factors(_split_outputs(block.cotangents, 2), inputs)
    return _split_outputs(block, 1)


def _split_outputs(array: Array, axis: int) -> Array:
    missing = -array.shape[axis] % jax.lax.axis_size(DEVICES)
    padded = jnp.pad(array, [(0, missing if i == axis else 0) for i in range(array.ndim)])
    return jax.lax.all_to_all(padded, DEVICES, axis, 0, tiled=True)


def _part(block: Any, span: Span) -> Any:
    """Some rows of a block."""
    if span[1] == len(block):
        return block
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, *span), block)


def _outputs(block: Block, start: Any, count: int) -> Block:
    """Some outputs of a leaf."""
    if count == block.shape[1]:
        return block
    if isinstance(block, Factors):
        cotangents = jax.lax.dynamic_slice_in_dim(block.cotangents, start, count, 2)
        return Factors(cotangents, block.inputs)
    return jax.lax.dynamic_slice_in_dim(block, start, count, 1)


def _block_vector(block: Block, v: Float[Array, "..."]) -> Float[Array, " n"]:
    if isinstance(block, Factors):
        return jnp.einsum("nso,oi,nsi->n", block.cotangents, v, block.inputs)
    return _matrix(block) @ v.ravel()


def _vector_block(y: Float[Array, " n"], block: Block) -> Float[Array, "..."]:
    if isinstance(block, Factors):
        return jnp.einsum("n,nso,nsi->oi", y, block.cotangents, block.inputs)
    return (y @ _matrix(block)).reshape(block.shape[1:])


def _matrix(block: Block) -> Float[Array, "n q"]:
    explicit = block.explicit if isinstance(block, Factors) else block
    return explicit.reshape(len(explicit), -1)


def _in_turn(*values: Any) -> Any:
    """The same values: what needs one of them waits for all, so that leaves follow one another."""
    return jax.lax.optimization_barrier(values)


def _mirror(lower: Float[Array, "n n"]) -> Float[Array, "n n"]:
    return jnp.tril(lower) + jnp.tril(lower, -1).T


def _sum(arrays: Any) -> Float[Array, "..."]:
    return sum(arrays, start=jnp.zeros(()))
