"""What products of a Jacobian cost, from the shapes of its blocks alone.

There is one count of operations. An element of a product of factors counts as `ELEMENT_COST`
operations more, for its memory traffic: with them the counts are in proportion to measured times
(docs/performance.md).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from .blocks import FLOAT, Block, RowBlock, blocks_of

TILES = 8  # rows of tiles in a lower triangle that is not left to syrk
Item = TypeVar("Item")


class Counted(NamedTuple):
    """The blocks of one condition, of any number of rows, and how many rows it has."""

    blocks: RowBlock
    rows: int


class PairCost(NamedTuple):
    """What one pair of conditions costs in a kernel."""

    from_factors: float  # operations
    from_gradients: float

    @property
    def operations(self) -> float:
        return self.from_factors + self.from_gradients


def lower_triangle(count: int) -> Iterator[tuple[int, int]]:
    """Each pair of `count` things once, as (i, j) with j ≤ i."""
    return ((i, j) for i in range(count) for j in range(i + 1))


def pair_costs(conditions: Sequence[Counted]) -> dict[tuple[int, int], PairCost]:
    """The operations of a kernel, for each pair of conditions: its lower triangle."""
    found = {}
    for i, j, matched in _matched(conditions):
        n, m = conditions[i].rows, conditions[j].rows
        elements = n * (n + 1) / 2 if i == j else n * m
        each = [(a.is_cheaper_structured(b), a.product_operations(b)) for a, b in matched]
        factors, gradients = (
            elements * sum(cost for is_structured, cost in each if is_structured == wanted)
            for wanted in (True, False)
        )
        found[i, j] = PairCost(factors, gradients)
    return found


def kernel_operations(conditions: Sequence[Counted]) -> float:
    """Of J Jᵀ."""
    return sum(pair.operations for pair in pair_costs(conditions).values())


def product_operations(conditions: Sequence[Counted], columns: int) -> float:
    """Of J (Jᵀ Y) with so many columns of Y, in two passes over the rows."""
    return sum(
        2 * rows * (2 * block.size * columns + block.forming_operations)
        for blocks, rows in conditions
        for block in blocks_of(blocks)
    )


def formed_bytes(conditions: Sequence[Counted]) -> list[int]:
    """What is formed for a kernel: gradients, per array and condition, and products of factors,
    per array and pair of conditions."""
    gradients: dict[tuple[int, int], int] = {}
    products: list[int] = []
    for i, j, matched in _matched(conditions):
        n, m = conditions[i].rows, conditions[j].rows
        for leaf, (a, b) in enumerate(matched):
            if a.is_cheaper_structured(b):
                share = TILES**2 if i == j else 1
                products.append(a.structured_bytes(b, n, m) // share)
                continue
            for side, block, rows in ((i, a, n), (j, b, m)):
                if not block.is_formed:
                    gradients[side, leaf] = FLOAT * rows * block.size
    return [*gradients.values(), *products]


def _matched(
    conditions: Sequence[Counted],
) -> Iterator[tuple[int, int, list[tuple[Block, Block]]]]:
    """Each pair of conditions, with the two blocks of each array of θ."""
    blocks = [blocks_of(condition.blocks) for condition in conditions]
    for i, j in lower_triangle(len(conditions)):
        yield i, j, list(zip(blocks[i], blocks[j], strict=True))
