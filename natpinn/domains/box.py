"""Boxes and their faces."""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from ..checks import floats, whole, words
from ..errors import InputError, unknown
from .base import CubeImage, Surface, pick


class Box(CubeImage):
    """A box {x : lower ≤ x ≤ upper}: all points between two corners.

    **Arguments:**

    - `lower`, `upper`: the corners, d numbers each, in the units of the problem. An interval is
      `Box([0], [1])`.
    - `names`: what the coordinates are called in faces, pictures and messages, as in `"x y"`. A
      face is named after its coordinate. Default: x0, x1, …

    **Raises:** `InputError` for corners that do not fit each other, are not finite or leave no
    volume, and for names that are not d different words.

        import natpinn

        plate = natpinn.Box([0, 0], [2, 1], names="x y")
        edge = plate.boundary
        inlet = plate.faces("x-")
    """

    lower: Float[Array, " d"]
    upper: Float[Array, " d"]
    given_names: tuple[str, ...] | None = eqx.field(static=True)

    def __init__(
        self, lower: "ArrayLike", upper: "ArrayLike", names: str | Sequence[str] | None = None
    ):
        self.lower = floats(lower, "the lower corner of a box")
        self.upper = floats(upper, "the upper corner of a box")
        if self.lower.ndim != 1 or self.lower.shape != self.upper.shape or not self.lower.size:
            raise InputError(
                f"the corners of a box must be two lists of d numbers, got shapes "
                f"{self.lower.shape} and {self.upper.shape}; an interval is Box([0], [1])"
            )
        lowest, highest = np.asarray(self.lower), np.asarray(self.upper)
        if not np.isfinite(highest - lowest).all():
            raise InputError(
                f"a box must be finite to be sampled, got {self.lower.tolist()} and "
                f"{self.upper.tolist()}: cut it off where the solution hardly changes"
            )
        if not (lowest < highest).all():
            raise InputError(
                f"a box needs lower < upper in every coordinate, got {self.lower.tolist()} and "
                f"{self.upper.tolist()}: exchange the corners, or drop an axis without extent"
            )

        known = None if names is None else words(names, "names", self.lower.size)
        self.given_names = known

    @classmethod
    def unit(cls, dimension: int) -> "Box":
        """The unit cube [0, 1]ᵈ.

        **Arguments:** `dimension`, how many coordinates d a point has, at least 1.

        **Returns:** the `Box`.

        **Raises:** `InputError` where the dimension is not a whole number from 1.

            import natpinn

            square = natpinn.Box.unit(2)
        """
        dimension = whole(dimension, "dimension")
        return cls([0.0] * dimension, [1.0] * dimension)

    @property
    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        return self.lower, self.upper

    @property
    def unit_dimension(self) -> int:
        return self.lower.size

    @property
    def has_volume(self) -> bool:
        return True

    @property
    def measure(self) -> Float[Array, ""]:
        return jnp.prod(self.upper - self.lower)

    def place(self, unit: Float[Array, " d"]) -> Float[Array, " d"]:
        return self.lower + (self.upper - self.lower) * unit

    @property
    def names(self) -> tuple[str, ...]:
        return super().names if self.given_names is None else self.given_names

    @property
    def face_names(self) -> tuple[str, ...]:
        """The names that `faces` takes: `x0-` where x0 is smallest, `x0+` where it is largest, …"""
        return tuple(f"{name}{end}" for name in self.names for end in "-+")

    @property
    def boundary(self) -> "BoxBoundary":
        """All faces; `boundary.with_normals` gives outward normals beside the points."""
        return BoxBoundary(self, tuple(range(2 * self.dimension)))

    def faces(self, *names: str) -> "BoxBoundary":
        """Some faces of the box.

        **Arguments:** `names`, one or more of `face_names`: the coordinate, and - for its smallest
        or + for its largest value.

        **Returns:** the faces as one domain, on which points are drawn uniformly.

        **Raises:** `InputError` without a name, and for one that is no face.

            import natpinn

            left_and_top = natpinn.Box.unit(2).faces("x0-", "x1+")
        """
        if not names:
            raise InputError(f"name at least one face of: {', '.join(self.face_names)}")
        numbers = {name: number for number, name in enumerate(self.face_names)}
        for name in names:
            if name not in numbers:
                raise unknown("face", str(name), numbers)
        return BoxBoundary(self, tuple(numbers[name] for name in names))


class BoxBoundary(Surface):
    """Faces of a box: a point of the box, with one coordinate moved to one of its two ends.

    A face is drawn with probability proportional to its area, so points are uniform on the whole.
    """

    box: Box
    chosen: tuple[int, ...] = eqx.field(static=True)  # face 2i: coordinate i lowest; 2i+1: highest

    @property
    def names(self) -> tuple[str, ...]:
        return self.box.names

    @property
    def areas(self) -> Float[Array, " faces"]:
        return self.box.measure / (self.box.upper - self.box.lower)[np.array(self.chosen) // 2]

    @property
    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        return self.box.bounds

    @property
    def unit_dimension(self) -> int:
        return 1 + self.box.dimension

    @property
    def measure(self) -> Float[Array, ""]:
        return self.areas.sum()

    def place_with_normal(
        self, unit: Float[Array, " k"]
    ) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        face = jnp.array(self.chosen)[pick(unit[0], self.areas)]
        axis, is_upper = face // 2, face % 2 == 1
        on_axis = jnp.arange(self.box.dimension) == axis
        end = jnp.where(is_upper, self.box.upper, self.box.lower)
        normal = jnp.where(on_axis, jnp.where(is_upper, 1.0, -1.0), 0.0)
        return jnp.where(on_axis, end, self.box.place(unit[1:])), normal
