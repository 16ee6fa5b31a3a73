"""The rows of one condition's Jacobian, held in memory or computed when they are asked for."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from ..parallel.devices import Index
from .blocks import RowBlock, blocks_of


@dataclass(frozen=True)
class Rows:
    """A chunk of rows at a time.

    Chunks have equal sizes, so the last one starts early and repeats rows of the one before it. On
    several devices `blocks` gives each device its own share of a chunk's rows.
    """

    count: int  # rows in all, on all devices
    chunk: int  # rows of one chunk, on all devices
    blocks: Callable[[Index], RowBlock]
    distinct: Callable[[Index], RowBlock]  # the same, with repeated rows as zeros

    @classmethod
    def held(cls, blocks: RowBlock, count: int) -> "Rows":
        """Rows that are in memory: one chunk."""
        return cls(count, count, lambda i: blocks, lambda i: blocks)

    @property
    def parameters(self) -> int:
        """How many columns the rows have."""
        return sum(block.size for block in blocks_of(jax.eval_shape(self.blocks, 0)))

    @property
    def chunks(self) -> int:
        return -(-self.count // self.chunk)

    def start(self, i: Index) -> Index:
        return 0 if self.chunks == 1 else jnp.minimum(i * self.chunk, self.count - self.chunk)
