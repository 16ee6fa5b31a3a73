"""Sets of points: boxes, their boundaries, unions and measured data.

Most are images of the unit cube, written for one point: a sampler of the cube then gives points
of the domain, uniform where the sampler is.
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree
from numpy.typing import ArrayLike

from .errors import InputError, unknown, whole
from .precision import float64
from .sampling import Sampler, Uniform

Point = PyTree[Float[Array, "..."]]  # one point: an array (d,), or a pytree that has one first
Points = PyTree[Float[Array, "n ..."]]


class Domain(eqx.Module):
    """A set of points that can be sampled."""

    @property
    @abstractmethod
    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """The corners of a box around the domain."""

    @abstractmethod
    def sample(self, key: PRNGKeyArray, n: int, sampler: Sampler = Uniform()) -> Points: ...

    @property
    def dimension(self) -> int:
        return self.bounds[0].size

    def covers(self, x: Float[Array, " d"]) -> Bool[Array, ""]:
        """Whether a point lies in the box around the domain, or around a part of a union."""
        lower, upper = self.bounds
        return jnp.all((lower <= x) & (x <= upper))

    @property
    def size(self) -> int | None:
        """How many points there are, where that is finite."""
        return None

    @property
    def has_volume(self) -> bool:
        """Whether the points fill as many dimensions as they have coordinates."""
        return False


class CubeImage(Domain):
    """A domain that is the image of a unit cube."""

    @property
    @abstractmethod
    def unit_dimension(self) -> int:
        """The dimension of the unit cube."""

    @property
    @abstractmethod
    def measure(self) -> Float[Array, ""]:
        """Volume, area, length; the number of points of a finite set."""

    @abstractmethod
    def place(self, unit: Float[Array, " k"]) -> Point:
        """The point of the domain that a point of the unit cube stands for."""

    def sample(self, key: PRNGKeyArray, n: int, sampler: Sampler = Uniform()) -> Points:
        return _draw(self, key, n, sampler)

    def __or__(self, other: "CubeImage") -> "Union":
        return Union(self, other)


@eqx.filter_jit  # one program where there would be dozens, each compiled before a run starts
def _draw(domain: CubeImage, key: PRNGKeyArray, n: int, sampler: Sampler) -> Points:
    return jax.vmap(domain.place)(sampler.unit(key, n, domain.unit_dimension))


class Surface(CubeImage):
    """A domain with an outward normal at each of its points."""

    @abstractmethod
    def place_with_normal(
        self, unit: Float[Array, " k"]
    ) -> tuple[Float[Array, " d"], Float[Array, " d"]]: ...

    def place(self, unit: Float[Array, " k"]) -> Float[Array, " d"]:
        return self.place_with_normal(unit)[0]

    @property
    def with_normals(self) -> "WithNormals":
        """The same points, each a pair (x, outward normal)."""
        return WithNormals(self)


class Box(CubeImage):
    """{x : lower ≤ x ≤ upper}."""

    lower: Float[Array, " d"]
    upper: Float[Array, " d"]

    def __init__(self, lower: ArrayLike, upper: ArrayLike):
        self.lower = float64(lower, "the lower corner of a box")
        self.upper = float64(upper, "the upper corner of a box")
        if self.lower.ndim != 1 or self.lower.shape != self.upper.shape or not self.lower.size:
            raise InputError(
                f"the corners of a box must be two lists of d numbers, got shapes "
                f"{self.lower.shape} and {self.upper.shape}; an interval is Box([0], [1])"
            )
        lowest, highest = np.asarray(self.lower), np.asarray(self.upper)
        if not np.isfinite(highest - lowest).all():
            raise InputError(
                f"a box must be finite to be sampled, got {self.lower.tolist()} and "
                f"{self.upper.tolist()}: cut it off where the solution has settled"
            )
        if not (lowest < highest).all():
            raise InputError(
                f"a box needs lower < upper in every coordinate, got {self.lower.tolist()} and "
                f"{self.upper.tolist()}: exchange the corners, or drop an axis without extent"
            )

    @classmethod
    def unit(cls, dimension: int) -> "Box":
        """[0, 1]ᵈ."""
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
    def face_names(self) -> tuple[str, ...]:
        """`x0-` is the face where coordinate 0 is smallest, `x0+` where it is largest."""
        return tuple(f"x{i}{end}" for i in range(self.dimension) for end in "-+")

    @property
    def boundary(self) -> "BoxBoundary":
        """All faces."""
        return self.faces(*self.face_names)

    def faces(self, *names: str) -> "BoxBoundary":
        """Some faces, as in `box.faces("x0-", "x1+")`."""
        if not names:
            raise InputError(f"name at least one face of: {', '.join(self.face_names)}")
        for name in names:
            if name not in self.face_names:
                raise unknown("face", str(name), self.face_names)
        return BoxBoundary(self, tuple(self.face_names.index(name) for name in names))


class BoxBoundary(Surface):
    """Faces of a box: a point of the box, with one coordinate moved to one of its two ends.

    A face is drawn with probability proportional to its area, so points are uniform on the whole.
    """

    box: Box
    chosen: tuple[int, ...] = eqx.field(static=True)  # face 2i: coordinate i lowest; 2i+1: highest

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
        face = jnp.array(self.chosen)[_choose(unit[0], self.areas)]
        axis, is_upper = face // 2, face % 2 == 1
        on_axis = jnp.arange(self.box.dimension) == axis
        end = jnp.where(is_upper, self.box.upper, self.box.lower)
        normal = jnp.where(on_axis, jnp.where(is_upper, 1.0, -1.0), 0.0)
        return jnp.where(on_axis, end, self.box.place(unit[1:])), normal


class WithNormals(CubeImage):
    """Points of a surface with their outward normals, for Neumann and Robin conditions."""

    surface: Surface

    @property
    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        return self.surface.bounds

    @property
    def unit_dimension(self) -> int:
        return self.surface.unit_dimension

    @property
    def measure(self) -> Float[Array, ""]:
        return self.surface.measure

    def place(self, unit: Float[Array, " k"]) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        return self.surface.place_with_normal(unit)


def enclosing_box(domains: Iterable[Domain]) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """The corners of the smallest box around domains."""
    lowers, uppers = zip(*(domain.bounds for domain in domains), strict=True)
    return jnp.stack(lowers).min(0), jnp.stack(uppers).max(0)


class Union(CubeImage):
    """Points of several domains, each drawn in proportion to its measure; overlaps count twice."""

    members: tuple[CubeImage, ...]

    def __init__(self, *members: CubeImage):
        self.members = members
        for member in members:
            if not isinstance(member, CubeImage):
                raise InputError(f"{type(member).__name__} cannot be part of a union")
        if len({isinstance(member, WithNormals) for member in members}) > 1:
            raise InputError("points with normals and points without are no union: take one kind")
        if not members or len({member.dimension for member in members}) != 1:
            raise InputError(
                f"a union needs domains of one dimension, got {[m.dimension for m in members]}"
            )

    @property
    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        return enclosing_box(self.members)

    def covers(self, x: Float[Array, " d"]) -> Bool[Array, ""]:
        return jnp.stack([member.covers(x) for member in self.members]).any()

    @property
    def unit_dimension(self) -> int:
        return 1 + max(member.unit_dimension for member in self.members)

    @property
    def has_volume(self) -> bool:
        return all(member.has_volume for member in self.members)

    @property
    def measures(self) -> Float[Array, " members"]:
        return jnp.stack([member.measure for member in self.members])

    @property
    def measure(self) -> Float[Array, ""]:
        return self.measures.sum()

    def place(self, unit: Float[Array, " k"]) -> Point:
        candidates = [member.place(unit[1 : 1 + member.unit_dimension]) for member in self.members]
        index = _choose(unit[0], self.measures)
        return jax.tree.map(lambda *leaves: jnp.stack(leaves)[index], *candidates)


class Data(Domain):
    """Measured data: a point is a pair (x, value). A batch is all of them or a random subset."""

    points: Float[Array, "n d"]
    values: Float[Array, "n ..."]

    def __init__(self, points: Any, values: Any):
        self.points = float64(points, "the points of the data")
        self.values = float64(values, "the values of the data")
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


def coordinates(point: Point) -> Float[Array, "... d"]:
    """The coordinates of a point that may carry more: a measured value, a normal."""
    return jax.tree.leaves(point)[0]


def _choose(unit: Float[Array, ""], weights: Float[Array, " m"]) -> Array:
    """An index below m, drawn in proportion to the weights by one uniform number."""
    ends = jnp.cumsum(weights) / jnp.sum(weights)
    return jnp.minimum(jnp.sum(unit >= ends), len(weights) - 1)
