"""Measured data."""

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from numpy.typing import ArrayLike

from ..checks import floats
from ..errors import InputError
from .base import Domain, Points
from .sampling import Sampler, Uniform


class Data(Domain):
    """Measured data: a point of this domain is the pair of a place x and the value measured there.

    A batch has all of the data, or a random subset where the condition has fewer `points`.

    **Arguments:**

    - `points`: the places, an array of shape (n, d) in float64, in the units of the problem.
    - `values`: what was measured, n numbers or n arrays, in the units of the model's values.

    **Raises:** `InputError` for arrays that do not fit each other, are not float64, or contain NaN
    or infinity.

        import natpinn

        readings = natpinn.Data([[0.2, 0.5], [0.8, 0.5]], [1.3, 0.9])
        fit = natpinn.Condition(lambda u, point: u(point[0]) - point[1], readings)
    """

    points: Float[Array, "n d"]
    values: Float[Array, "n ..."]

    def __init__(self, points: "ArrayLike", values: "ArrayLike"):
        self.points = floats(points, "the points of the data")
        self.values = floats(values, "the values of the data")
        if self.points.ndim != 2 or not self.points.size:
            raise InputError(
                f"the points of the data must have shape (n, d), got {self.points.shape}; for one "
                f"coordinate write points[:, None]"
            )
        if self.values.ndim == 0 or len(self.points) != len(self.values):
            raise InputError(
                f"the data need one value per point, got {len(self.points)} points and values of "
                f"shape {self.values.shape}"
            )
        for name, array in (("points", self.points), ("values", self.values)):
            if not bool(jnp.isfinite(array).all()):
                raise InputError(f"the {name} of the data contain NaN or infinity: drop those rows")

    @property
    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        return self.points.min(0), self.points.max(0)

    @property
    def size(self) -> int:
        return len(self.points)

    def sample(self, key: PRNGKeyArray, n: int, sampler: Sampler = Uniform()) -> Points:
        if n > self.size:
            raise InputError(f"{n} points were asked of data that have {self.size}")
        if n == self.size:
            return self.points, self.values
        chosen = jnp.argsort(sampler.unit(key, self.size, 1)[:, 0])[:n]
        return self.points[chosen], self.values[chosen]
