"""Time × space: slabs, their initial and final slices, and the boundary of space through time."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..checks import floats
from ..errors import InputError
from .base import CubeImage, Surface, WithNormals
from .box import Box


class TimeSpace(CubeImage):
    """Time × space, [start, end] × space: its points have time as coordinate 0, space follows.

    **Arguments:**

    - `start`, `end`: the first and the last time, in the units of the problem.
    - `space`: the domain of space, mostly a `Box`. Only a `Box` has a `boundary` and `faces` that
      are followed in time.

    **Raises:** `InputError` for times that are not finite or do not run forward, and where space is
    no domain, or measured data, or has normals.

        import natpinn

        slab = natpinn.TimeSpace(0, 2, natpinn.Box([0], [1]))
        start = natpinn.Condition(lambda u, tx: u(tx) - tx[1] * (1 - tx[1]), slab.initial)
        walls = natpinn.Condition(lambda u, tx: u(tx), slab.boundary)
    """

    start: Float[Array, ""]
    end: Float[Array, ""]
    space: CubeImage

    def __init__(self, start: float, end: float, space: CubeImage):
        self.start, self.end = floats(start, "start"), floats(end, "end")
        self.space = space
        if not isinstance(space, CubeImage):
            raise InputError(f"space must be a domain such as Box([0], [1]), got {space!r}")
        if isinstance(space, WithNormals):
            raise InputError(
                "space has no normals: write TimeSpace(start, end, box).boundary.with_normals"
            )
        if not bool(jnp.isfinite(self.end - self.start)):
            raise InputError(f"time must be finite to be sampled, got {start} and {end}")
        if not bool(self.start < self.end):
            raise InputError(f"time must run forward: need start < end, got {start} and {end}")

    @property
    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        lower, upper = self.space.bounds
        return _with_time(self.start, lower), _with_time(self.end, upper)

    @property
    def names(self) -> tuple[str, ...]:
        return "t", *self.space.names

    def covers(self, x: Float[Array, " d"]) -> Bool[Array, ""]:
        return (self.start <= x[0]) & (x[0] <= self.end) & self.space.covers(x[1:])

    @property
    def unit_dimension(self) -> int:
        return 1 + self.space.unit_dimension

    @property
    def has_volume(self) -> bool:
        return self.space.has_volume

    @property
    def measure(self) -> Float[Array, ""]:
        return (self.end - self.start) * self.space.measure

    def place(self, unit: Float[Array, " k"]) -> Float[Array, " d"]:
        time = self.start + (self.end - self.start) * unit[0]
        return _with_time(time, self.space.place(unit[1:]))

    @property
    def initial(self) -> "TimeSlice":
        """{start} × space, where initial values hold."""
        return TimeSlice(self.start, self.space)

    @property
    def final(self) -> "TimeSlice":
        """{end} × space."""
        return TimeSlice(self.end, self.space)

    @property
    def boundary(self) -> "Lateral":
        """[start, end] × the boundary of space."""
        return Lateral(self, self._box.boundary)

    def faces(self, *names: str) -> "Lateral":
        """[start, end] × some faces of space.

        **Arguments:** `names`, one or more faces of the box: `x0-` is where the first coordinate of
        space, not time, is smallest.

        **Returns:** the faces as one domain.

        **Raises:** `InputError` for a name that is no face, as `t-` (the domain there is
        `initial`).

            import natpinn

            left = natpinn.TimeSpace(0, 1, natpinn.Box([0], [1])).faces("x0-")
        """
        for name in names:
            if name in ("t-", "t+"):
                end = "initial" if name == "t-" else "final"
                raise InputError(f"faces are those of the space: for {name!r} take .{end}")
        return Lateral(self, self._box.faces(*names))

    @property
    def _box(self) -> Box:
        if not isinstance(self.space, Box):
            raise InputError(
                f"only a Box has faces to follow in time, got {type(self.space).__name__}"
            )
        return self.space


class TimeSlice(CubeImage):
    """{time} × space."""

    time: Float[Array, ""]
    space: CubeImage

    @property
    def names(self) -> tuple[str, ...]:
        return "t", *self.space.names

    @property
    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        lower, upper = self.space.bounds
        return _with_time(self.time, lower), _with_time(self.time, upper)

    @property
    def unit_dimension(self) -> int:
        return self.space.unit_dimension

    @property
    def measure(self) -> Float[Array, ""]:
        return self.space.measure

    def place(self, unit: Float[Array, " k"]) -> Float[Array, " d"]:
        return _with_time(self.time, self.space.place(unit))


class Lateral(Surface):
    """[start, end] × a surface: where boundary conditions of a time-dependent problem hold."""

    slab: TimeSpace
    surface: Surface

    @property
    def names(self) -> tuple[str, ...]:
        return self.slab.names

    @property
    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        return self.slab.bounds

    @property
    def unit_dimension(self) -> int:
        return 1 + self.surface.unit_dimension

    @property
    def measure(self) -> Float[Array, ""]:
        return (self.slab.end - self.slab.start) * self.surface.measure

    def place_with_normal(
        self, unit: Float[Array, " k"]
    ) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        x, normal = self.surface.place_with_normal(unit[1:])
        time = self.slab.start + (self.slab.end - self.slab.start) * unit[0]
        return _with_time(time, x), _with_time(jnp.zeros_like(time), normal)


def _with_time(time: Float[Array, ""], x: Float[Array, " d"]) -> Float[Array, " d+1"]:
    return jnp.concatenate([time[None], x])
