"""What a step needs beside the parameters, known from numbers of rows and parameters alone."""

from dataclasses import dataclass
from enum import Enum, auto


class Demand(Enum):
    """What is made of the Jacobian, which says what has to be in memory."""

    GRADIENT = auto()  # nothing but the gradient of the loss
    PRODUCTS = auto()  # J v and Jᵀ y
    KERNEL = auto()  # J Jᵀ
    GRAMIAN = auto()  # Jᵀ J
    SKETCH = auto()  # J (Jᵀ Ω), with some vectors Ω
    LAYERS = auto()  # what the gradients of dense layers are made of


@dataclass(frozen=True)
class Footprint:
    """The memory that an optimizer's step, or the solve in it, needs."""

    demand: Demand = Demand.GRADIENT
    system_bytes: int = 0  # of all matrices that are in memory at the same time
    columns: int = 0  # of Ω, for a sketch
    state_copies: int = 1  # of the optimizer's state: 2 if a step holds the old and the new one
    whitens: bool = False  # whether the gradients of all rows are formed and solved with

    def side(self, rows: int, parameters: int) -> int:
        """The side of a square matrix whose Cholesky factor costs as much as a step's solve."""
        if self.demand is Demand.KERNEL:
            return rows
        if self.demand is Demand.GRAMIAN:
            return parameters
        if self.demand is Demand.SKETCH:
            return round((18 * rows * self.columns**2) ** (1 / 3))
        return 0  # the matrices of layers are small
