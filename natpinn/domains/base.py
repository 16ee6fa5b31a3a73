"""Sets of points: boxes, their boundaries, unions and measured data.

Most are images of the unit cube, written for one point: a sampler of the cube then gives points
of the domain, uniform where the sampler is.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from ..errors import InputError
from .sampling import Sampler, Uniform

Point = PyTree[Float[Array, "..."]]  # one point: an array (d,), or a pytree that has one first
Points = PyTree[Float[Array, "n ..."]]


class Domain(eqx.Module):
    """A set of points on which a condition holds: the contract of every domain.

    A subclass defines

    - `bounds`: the corners of a box around the domain, two arrays of shape (d,).
    - `sample(key, n, sampler)`: n points, an array of shape (n, d) or a tuple that has one first.

    It may override `names`, `covers`, `size` and `has_volume`. A problem measures its error on the
    first of its domains that has a volume.

        import jax.numpy as jnp
        import natpinn

        class Disc(natpinn.Domain):
            bounds = (-jnp.ones(2), jnp.ones(2))
            has_volume = True

            def sample(self, key, n, sampler=natpinn.Uniform()):
                radius, turn = sampler.unit(key, n, 2).T
                angle = 2 * jnp.pi * turn
                return jnp.sqrt(radius)[:, None] * jnp.stack([jnp.cos(angle), jnp.sin(angle)], 1)

        equation = natpinn.Condition(lambda u, x: natpinn.laplacian(u)(x) + 1, Disc(), points=50)
    """

    @property
    @abstractmethod
    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """The corners of a box around the domain, two arrays of shape (d,)."""

    @abstractmethod
    def sample(self, key: PRNGKeyArray, n: int, sampler: Sampler = Uniform()) -> Points:
        """Points of the domain.

        **Arguments:**

        - `key`: a random key of JAX; the points are a function of it.
        - `n`: how many points.
        - `sampler`: how points of the unit cube are drawn, which are then placed in the domain.
          Default: `Uniform()`, independent of each other.

        **Returns:** an array of shape (n, d); from `Data` the pair of places and values, from
        `with_normals` the pair of places and outward normals.

        **Raises:** `InputError` where measured data have fewer points than n.

            import jax
            import natpinn

            points = natpinn.Box.unit(2).sample(jax.random.key(0), 5)
        """

    @property
    def dimension(self) -> int:
        """How many coordinates a point has, time included."""
        return self.bounds[0].size

    @property
    def names(self) -> tuple[str, ...]:
        """What the coordinates are called in faces, pictures and messages: x0, x1, …"""
        return tuple(f"x{i}" for i in range(self.dimension))

    def covers(self, x: Float[Array, " d"]) -> Bool[Array, ""]:
        """Whether a point lies in the box around the domain, or around one of the parts of a union.

        **Arguments:** `x`, a point of shape (d,).

        **Returns:** a boolean array of shape ().

            import jax.numpy as jnp
            import natpinn

            natpinn.Box.unit(2).covers(jnp.array([0.5, 2.0]))  # False
        """
        lower, upper = self.bounds
        return jnp.all((lower <= x) & (x <= upper))

    @property
    def size(self) -> int | None:
        """How many points there are, or None if they are infinitely many."""
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
        """The dimension of the unit cube whose image the domain is."""

    @property
    @abstractmethod
    def measure(self) -> Float[Array, ""]:
        """Length, area or volume of the domain."""

    @abstractmethod
    def place(self, unit: Float[Array, " k"]) -> Point:
        """The point of the domain that a point of the unit cube is mapped to.

        **Arguments:** `unit`, a point of the unit cube, of shape (k,) with k = `unit_dimension`.

        **Returns:** the point, of shape (d,), or the pair of it and its normal.

            import jax.numpy as jnp
            import natpinn

            natpinn.Box([0], [2]).place(jnp.array([0.5]))  # [1.]
        """

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


class WithNormals(CubeImage):
    """Points of a surface with their outward normals, for Neumann and Robin conditions."""

    surface: Surface

    @property
    def names(self) -> tuple[str, ...]:
        return self.surface.names

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
    return _lowest_and_highest(lowers, uppers)


@jax.jit
def _lowest_and_highest(lowers: Sequence[Array], uppers: Sequence[Array]) -> tuple[Array, Array]:
    return jnp.stack(lowers).min(0), jnp.stack(uppers).max(0)


class Union(CubeImage):
    """Points of several domains, drawn from each with a probability in proportion to its measure.

    `a | b` is `Union(a, b)`. Where two members overlap, points are drawn twice as densely.

    **Arguments:** `members`, at least one domain, all of the same dimension: boxes, time slabs,
    their surfaces, or other unions.

    **Raises:** `InputError` for domains of different dimensions, for `Data`, and where some
    members have normals and others have none.

        import natpinn

        corridor, room = natpinn.Box([0, 0], [2, 1]), natpinn.Box([2, 0], [3, 3])
        flat = corridor | room
    """

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

    @property
    def names(self) -> tuple[str, ...]:
        return self.members[0].names

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
        """The measure of each member."""
        return jnp.stack([member.measure for member in self.members])

    @property
    def measure(self) -> Float[Array, ""]:
        return self.measures.sum()

    def place(self, unit: Float[Array, " k"]) -> Point:
        candidates = [member.place(unit[1 : 1 + member.unit_dimension]) for member in self.members]
        index = pick(unit[0], self.measures)
        return jax.tree.map(lambda *leaves: jnp.stack(leaves)[index], *candidates)


def coordinates(point: Point) -> Float[Array, "... d"]:
    """The coordinates of a point that may carry more: a measured value, a normal."""
    return jax.tree.leaves(point)[0]


def pick(unit: Float[Array, ""], weights: Float[Array, " m"]) -> Array:
    """An index below m, drawn in proportion to the weights by one uniform number."""
    ends = jnp.cumsum(weights) / jnp.sum(weights)
    return jnp.minimum(jnp.sum(unit >= ends), len(weights) - 1)
