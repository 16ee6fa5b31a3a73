"""How a step is computed: what is held in memory, how much is done at once, on which devices.

A plan changes no result beyond round-off. Batches that do not divide by the number of devices are
padded with copies of their last point, whose rows are then scaled by zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import numpy as np
from jax.sharding import Mesh

PACKED = ("held", "points_at_once", "working_bytes", "candidates_at_once", "lapack_threads")


@dataclass(frozen=True)
class Plan:
    """The default holds everything and does all at once, on one device."""

    held: bool = True  # the Jacobian stays in memory; if not, its rows are computed pair by pair
    points_at_once: int | None = None  # of one condition, over all devices; None: all of them
    working_bytes: int | None = None  # per device, for one product of the kernel; None: no limit
    candidates_at_once: int | None = None  # of a line search; None: as many as it likes
    lapack_threads: int | None = field(default=None, compare=False)  # None: chosen by `train`
    mesh: Mesh | None = None  # None: one device
    backend: str = field(default_factory=jax.default_backend)  # which products are fast: cpu, gpu

    @property
    def devices(self) -> int:
        return 1 if self.mesh is None else self.mesh.size

    def padded(self, n: int) -> int:
        """The number of points after padding to a multiple of the devices."""
        return _round_up(n, self.devices)

    def chunk(self, n: int) -> int:
        """How many of n points are done at once: chunks of equal size, a multiple of devices."""
        at_once = self.points_at_once or n
        return _round_up(-(-n // -(-n // at_once)), self.devices)

    def packed(self) -> dict[str, np.ndarray]:
        """The plan as arrays, for a checkpoint, without its devices, which are chosen anew."""
        numbers = {name: getattr(self, name) for name in PACKED}
        return {name: np.array(-1 if n is None else int(n)) for name, n in numbers.items()}

    @classmethod
    def unpacked(cls, packed: Mapping[str, np.ndarray], mesh: Mesh | None) -> "Plan":
        """The plan that `packed` made arrays of, on the given devices."""
        held, *limits = (int(packed[name]) for name in PACKED)
        return cls(bool(held), *(None if n < 0 else n for n in limits), mesh=mesh)


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
