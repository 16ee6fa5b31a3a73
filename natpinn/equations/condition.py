"""An equation that holds on a set of points."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..checks import floats, whole
from ..domains.base import Domain, Point, Points, coordinates
from ..domains.sampling import Sampler, Uniform
from ..errors import InputError
from ..precision import real
from ..programs import traced_once

INTERIOR_POINTS, SURFACE_POINTS = 500, 100


class Condition(eqx.Module):
    """An equation on a domain: residual(u, x) = 0 for every x of it.

    A condition adds weight/(2n) Σ residual² to the loss, a sum over the n points of a batch.

    **Arguments:**

    - `residual`: a function of the model u and of ONE point, which returns one number, or a vector
      of them for several equations. It is written with `jax.numpy`.
    - `domain`: where the equation holds. Points of `Data` and of `with_normals` are pairs.
    - `weight`: a positive number without a unit: how much the condition counts beside the others.
      Default: 1.
    - `points`: how many points a batch has. Default: all of measured data; otherwise what
      `natpinn.solve` proposes for the model, or without it 500, and 100 for a domain of lower
      dimension than its points.
    - `sampler`: how the points are drawn. Default: `Uniform()`, independent and new at every step.

    **Raises:** `InputError` for a residual that is no function, a weight that is not positive, or
    more points than measured data have.

        import natpinn

        square = natpinn.Box.unit(2)
        inside = natpinn.Condition(lambda u, x: natpinn.laplacian(u)(x) + 1, square, points=200)
        edge = natpinn.Condition(lambda u, x: u(x), square.boundary, weight=10)
    """

    residual: Callable[[Any, Point], Float[Array, "..."]]
    domain: Domain
    weight: Float[Array, ""]
    points: int = eqx.field(static=True)
    is_sized: bool = eqx.field(static=True)  # the number of points is given, not proposed
    sampler: Sampler

    def __init__(
        self,
        residual: Callable[[Any, Point], Float[Array, "..."]],
        domain: Domain,
        weight: float | Array = 1.0,
        points: int | None = None,
        sampler: Sampler = Uniform(),
    ):
        if not callable(residual):
            raise InputError(
                f"a residual is a function of (model, point), got {type(residual).__name__}"
            )
        if not isinstance(domain, Domain):
            raise InputError(f"a condition needs a domain, got {type(domain).__name__}")
        self.residual = residual
        self.domain = domain
        self.weight = floats(weight, "weight")
        self.points = _default_points(domain) if points is None else whole(points, "points")
        self.is_sized = points is not None or domain.size is not None
        self.sampler = sampler
        if not (self.weight.ndim == 0 and 0 < float(self.weight) < math.inf):
            raise InputError(f"a weight must be a positive number, got {weight}")
        if not isinstance(sampler, Sampler):
            raise InputError(f"a sampler is an object such as Sobol(), got {sampler!r}")
        if domain.size is not None and self.points > domain.size:
            raise InputError(
                f"{self.points} points were asked of data that have {domain.size}: leave `points` "
                f"out to use them all"
            )

    def with_points(self, points: int | None) -> "Condition":
        """The same condition with another number of points in a batch.

        **Arguments:** `points`, how many, or None for as many as are proposed for the model.

        **Returns:** the new `Condition`.

            import natpinn

            edge = natpinn.Condition(lambda u, x: u(x), natpinn.Box.unit(2).boundary)
            larger = edge.with_points(400)
        """
        return Condition(self.residual, self.domain, self.weight, points, self.sampler)

    def with_sampler(self, sampler: Sampler) -> "Condition":
        """The same condition with its points drawn another way.

        **Arguments:** `sampler`, such as `Sobol()`.

        **Returns:** the new `Condition`.

            import natpinn

            edge = natpinn.Condition(lambda u, x: u(x), natpinn.Box.unit(2).boundary)
            even = edge.with_sampler(natpinn.Sobol())
        """
        points = self.points if self.is_sized else None
        return Condition(self.residual, self.domain, self.weight, points, sampler)

    def sample(self, key: PRNGKeyArray) -> Points:
        """A batch of points of the condition.

        **Arguments:** `key`, a random key of JAX; the points are a function of it.

        **Returns:** an array of shape (n, d), or a pair of arrays, as the domain gives them.

            import jax
            import natpinn

            edge = natpinn.Condition(lambda u, x: u(x), natpinn.Box.unit(2).boundary)
            points = edge.sample(jax.random.key(0))
        """
        return self.domain.sample(key, self.points, self.sampler)

    def rows(self, model: Any, point: Point) -> Float[Array, " k"]:
        """The residual at one point, as a vector.

        **Arguments:**

        - `model`: a function of one point.
        - `point`: one point of the domain, or a pair where its points are pairs.

        **Returns:** an array of shape (k,) for k equations.

            import jax.numpy as jnp
            import natpinn

            edge = natpinn.Condition(lambda u, x: u(x), natpinn.Box.unit(2).boundary)
            edge.rows(jnp.sum, jnp.array([0.0, 0.5]))  # [0.5]
        """
        return jnp.atleast_1d(_evaluated(self.residual, model, point))

    def check(self, name: str, model: Any) -> None:
        """Check that the model, the residual and the domain fit each other, from shapes alone.

        **Arguments:**

        - `name`: what messages call the condition.
        - `model`: a function of one point.

        **Raises:** `InputError` where the residual cannot be evaluated at one point, or does not
        return one number or a vector in the precision of the run.

            import jax.numpy as jnp
            import natpinn

            edge = natpinn.Condition(lambda u, x: u(x), natpinn.Box.unit(2).boundary)
            edge.check("edge", jnp.sum)
        """
        points = jax.eval_shape(self.sample, jax.random.key(0))
        point = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape[1:], p.dtype), points)
        shapes = jax.tree.map(lambda p: p.shape, point)
        try:
            out = eqx.filter_eval_shape(_evaluated, self.residual, model, point)
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise InputError(
                f"condition {name!r} cannot be evaluated at one point, of shape {shapes}: {reason}"
                f"{_remedy(error, model, point)}"
            ) from error
        if callable(out):
            raise InputError(
                f"condition {name!r} returns a function, not its value at the point: write "
                f"laplacian(u)(x), not laplacian(u) or laplacian(u, x)"
            )
        if not hasattr(out, "shape") or len(out.shape) > 1 or out.size == 0:
            found = getattr(out, "shape", type(out).__name__)
            raise InputError(
                f"condition {name!r} must return one number or a vector at one point, shape () or "
                f"(k,), got {found}"
            )
        if out.dtype != real():
            raise InputError(
                f"condition {name!r} must return {jnp.dtype(real())}, got {out.dtype}: look for "
                f"arrays of another type in it"
            )


@traced_once
def _evaluated(residual: Callable[[Any, Point], Array], model: Any, point: Point) -> Array:
    """What a residual returns at one point."""
    return residual(model, point)


def _remedy(error: Exception, model: Any, point: Point) -> str:
    """What may have gone wrong in a residual."""
    if isinstance(error, InputError):
        return ""
    if isinstance(error, jax.errors.TracerArrayConversionError):
        return " (write jnp.sin, with jax.numpy, in place of numpy.sin)"
    if isinstance(error, jax.errors.ConcretizationTypeError):
        return " (write jnp.where(a > b, …, …) in place of if, and jnp.sin in place of math.sin)"
    x = coordinates(point)
    try:
        value = eqx.filter_eval_shape(model, x)
    except Exception:  # whatever it raises
        return f" (does the model take {x.size} coordinates?)"
    if isinstance(point, tuple):
        return " (the point is a pair: unpack it, as in x, n = point)"
    found = getattr(value, "shape", type(value).__name__)
    what = f"{type(model).__name__} with values of shape {found}"
    return f" (a residual gets the model, here {what}, and a point)"


def _default_points(domain: Domain) -> int:
    if domain.size is not None:
        return domain.size
    return INTERIOR_POINTS if domain.has_volume else SURFACE_POINTS
