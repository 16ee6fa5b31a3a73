"""Differential operators: each takes a function of one point and returns a function of one point.

They compose with each other and with `jax.vmap`, `jax.grad` and `jax.jit`. A function may return
one number or several; every operator acts on each of them.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import folx
import jax
import jax.numpy as jnp
from folx.api import FwdJacobian, FwdLaplArray
from jaxtyping import Array, Float, PyTree
from numpy.typing import ArrayLike

from ..errors import InputError
from ..precision import real
from ..programs import inner_programs

if TYPE_CHECKING:
    from jax.extend.core import Jaxpr

Field = Callable[[Float[Array, " d"]], Float[Array, "..."]]
Coefficient = Float[Array, "..."] | Callable[[Float[Array, " d"]], Float[Array, "..."]]


class SecondOrder(NamedTuple):
    """A function's value, first derivatives and second-order term at one point.

    - `value`: u(x), of shape () or (m,).
    - `gradient`: ∇u, or σᵀ∇u, with one entry for each direction along its last axis.
    - `laplacian`: Δu, or tr(σᵀ ∇²u σ) + b·∇u, of the shape of `value`.
    """

    value: Float[Array, "..."]
    gradient: Float[Array, "... k"]
    laplacian: Float[Array, "..."]


def gradient(u: Field) -> Field:
    """The gradient ∇u of a function.

    **Arguments:** `u`, a function of one point with one value, or with m of them.

    **Returns:** a function of one point whose value is ∇u, of shape (d,), or the Jacobian (m, d).

        import natpinn

        natpinn.gradient(lambda x: x[0] ** 2 * x[1])([2.0, 3.0])  # [12., 4.]
    """
    return jacobian(u)


def jacobian(u: Field) -> Field:
    """The derivatives ∂uᵢ/∂xⱼ of a function, by forward or reverse mode, whichever is cheaper.

    **Arguments:** `u`, a function of one point with m values.

    **Returns:** a function of one point whose value has shape (m, d), or (d,) where u is a number.

        import natpinn

        natpinn.jacobian(lambda x: x**2)([1.0, 2.0])  # [[2., 0.], [0., 4.]]
    """

    def derivatives(x: Float[Array, " d"]) -> Float[Array, "... d"]:
        x = _one_point(x)
        outputs = jax.eval_shape(u, x).size
        return (jax.jacrev if outputs <= x.size else jax.jacfwd)(u)(x)

    return derivatives


def divergence(u: Field) -> Field:
    """The divergence ∇·u = Σᵢ ∂uᵢ/∂xᵢ of a vector field.

    **Arguments:** `u`, a function of one point with as many values as the point has coordinates.

    **Returns:** a function of one point whose value is a number.

    **Raises:** `InputError` at a point, where u has another number of values.

        import natpinn

        natpinn.divergence(lambda x: x**2)([1.0, 2.0])  # 6.
    """

    def trace(x: Float[Array, " d"]) -> Float[Array, ""]:
        x = _one_point(x)
        values = jax.eval_shape(u, x).shape
        if values != x.shape:
            raise InputError(
                f"divergence needs a field with one value per coordinate, got values of shape "
                f"{values} at a point of shape {x.shape}: select the components first"
            )
        return jnp.trace(jacobian(u)(x))

    return trace


def partial(u: Field, *coordinates: int) -> Field:
    """A partial derivative ∂ⁿu/∂xᵢ∂xⱼ…, of first or higher order.

    **Arguments:**

    - `u`: a function of one point.
    - `coordinates`: one for each order, counted from 0: `partial(u, 0, 0, 1)` is ∂³u/∂x₀²∂x₁.

    **Returns:** a function of one point with as many values as u.

    **Raises:** `InputError` without coordinates, and at a point that has no such coordinate.

        import natpinn

        natpinn.partial(lambda x: x[0] ** 2 * x[1], 0, 1)([2.0, 3.0])  # 4.
    """
    if not coordinates:
        raise InputError("partial needs at least one coordinate, as in partial(u, 0)")

    def along(v: Field, i: int) -> Field:
        def derivative(x: Float[Array, " d"]) -> Float[Array, "..."]:
            x = _one_point(x)
            _check_coordinate(i, x)
            return jax.jvp(v, (x,), (jnp.zeros_like(x).at[i].set(1),))[1]

        return derivative

    for i in coordinates:
        u = along(u, i)
    return u


def laplacian(u: Field, coordinates: Sequence[int] | None = None) -> Field:
    """The Laplacian Δu = Σᵢ ∂²u/∂xᵢ².

    **Arguments:**

    - `u`: a function of one point.
    - `coordinates`: those that the sum goes over, counted from 0, as `[1, 2]` for two of space
      beside time. Default: all.

    **Returns:** a function of one point with as many values as u.

    **Raises:** `InputError` at a point that has no such coordinates.

        import natpinn

        natpinn.laplacian(lambda x: x @ x)([1.0, 2.0])  # 4.
    """
    return lambda x: value_gradient_laplacian(u, coordinates)(x).laplacian


def weighted_laplacian(u: Field, sigma: Coefficient, drift: Coefficient | None = None) -> Field:
    """A second-order operator tr(σᵀ ∇²u σ) + b·∇u: diffusion and drift in one pass.

    **Arguments:**

    - `u`: a function of one point.
    - `sigma`: σ, of shape (d, k), or a function of the point that returns it.
    - `drift`: b, of shape (d,), or a function of the point that returns it. Default: zero.

    **Returns:** a function of one point with as many values as u.

    **Raises:** `InputError` at a point that σ or b does not fit.

        import jax.numpy as jnp
        import natpinn

        def u(tx):
            return jnp.exp(-tx[0]) * jnp.sin(tx[1])

        heat = natpinn.weighted_laplacian(u, sigma=[[0.0], [1.0]], drift=[-1.0, 0.0])
        heat([0.5, 0.5])  # ∂²u/∂x² − ∂u/∂t = 0
    """
    return lambda x: weighted_value_gradient_laplacian(u, sigma, drift)(x).laplacian


def value_gradient_laplacian(
    u: Field, coordinates: Sequence[int] | None = None
) -> Callable[[Float[Array, " d"]], SecondOrder]:
    """A function's value u, gradient ∇u and Laplacian Δu in one pass.

    **Arguments:**

    - `u`: a function of one point.
    - `coordinates`: those of the gradient and the Laplacian, counted from 0. Default: all.

    **Returns:** a function of one point whose value is a `SecondOrder`.

    **Raises:** `InputError` at a point that has no such coordinates.

        import natpinn

        value, slope, curvature = natpinn.value_gradient_laplacian(lambda x: x @ x)([1.0, 2.0])
    """

    def evaluate(x: Float[Array, " d"]) -> SecondOrder:
        x = _one_point(x)
        if isinstance(coordinates, int) or (coordinates is not None and not len(coordinates)):
            raise InputError(f"coordinates are a list, as in [0, 1], got {coordinates!r}")
        chosen = list(range(x.size) if coordinates is None else coordinates)
        for i in chosen:
            _check_coordinate(i, x)
        directions = jnp.eye(x.size, dtype=x.dtype)[jnp.array(chosen)]
        return _propagate(u, x, directions, jnp.zeros_like(x))

    return evaluate


def weighted_value_gradient_laplacian(
    u: Field, sigma: Coefficient, drift: Coefficient | None = None
) -> Callable[[Float[Array, " d"]], SecondOrder]:
    """A function's value u, σᵀ∇u and tr(σᵀ ∇²u σ) + b·∇u in one pass.

    **Arguments:**

    - `u`: a function of one point.
    - `sigma`: σ, of shape (d, k), or a function of the point that returns it.
    - `drift`: b, of shape (d,), or a function of the point that returns it. Default: zero.

    **Returns:** a function of one point whose value is a `SecondOrder`.

    **Raises:** `InputError` at a point that σ or b does not fit.

        import natpinn

        both = natpinn.weighted_value_gradient_laplacian(lambda x: x @ x, [[0.0], [2.0]])
        value, along, second = both([1.0, 2.0])  # 5., [8.], 8.
    """

    def evaluate(x: Float[Array, " d"]) -> SecondOrder:
        x = _one_point(x)
        at_x = sigma(x) if callable(sigma) else jnp.asarray(sigma, x.dtype)
        b = drift(x) if callable(drift) else drift
        b = jnp.zeros_like(x) if b is None else jnp.asarray(b, x.dtype)
        if at_x.ndim != 2 or at_x.shape[0] != x.size or b.shape != x.shape:
            raise InputError(
                f"at a point of shape {x.shape} sigma must have shape ({x.size}, k) and drift "
                f"shape ({x.size},), got {at_x.shape} and {b.shape}"
            )
        return _propagate(u, x, at_x.T, b)

    return evaluate


def _propagate(
    u: Field, x: Float[Array, " d"], directions: Float[Array, "k d"], drift: Float[Array, " d"]
) -> SecondOrder:
    """Push (x, directions, drift) through `u` as (value, Jacobian, Laplacian) streams."""
    if _has_loop(jax.make_jaxpr(u)(x).jaxpr):
        return _nested(u, x, directions, drift)
    seed: PyTree = FwdLaplArray(x, FwdJacobian(directions), drift)
    out: PyTree = folx.forward_laplacian(u, disable_jit=True)(seed)
    if not isinstance(out, FwdLaplArray):  # u does not depend on x
        zero = jnp.zeros_like(out)
        return SecondOrder(jnp.asarray(out), jnp.stack([zero] * len(directions), -1), zero)
    return SecondOrder(out.x, jnp.moveaxis(out.jacobian.dense_array, 0, -1), out.laplacian)


def _nested(
    u: Field, x: Float[Array, " d"], directions: Float[Array, "k d"], drift: Float[Array, " d"]
) -> SecondOrder:
    """The same by forward mode over forward mode: twice the cost, and any function works."""

    def along(v: Float[Array, " d"]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        return jax.jvp(lambda y: jax.jvp(u, (y,), (v,))[1], (x,), (v,))

    first, second = jax.vmap(along, out_axes=-1)(directions)
    value, drifted = jax.jvp(u, (x,), (drift,))
    return SecondOrder(value, first, second.sum(-1) + drifted)


def _has_loop(jaxpr: "Jaxpr") -> bool:
    """Whether a jaxpr loops anywhere: folx cannot follow every value that a loop carries."""
    return any(
        eqn.primitive.name in ("while", "scan") or any(map(_has_loop, inner_programs(eqn)))
        for eqn in jaxpr.eqns
    )


def _one_point(x: "ArrayLike") -> Float[Array, " d"]:
    """A point as an array of floats; of many points every operator would be something else."""
    if not isinstance(x, jax.Array) or x.dtype != real():
        x = jnp.asarray(x, real())
    if x.ndim != 1:
        raise InputError(
            f"an operator acts at one point, of shape (d,), got {x.shape}: at many points write "
            f"jax.vmap(laplacian(u))(points)"
        )
    return x


def _check_coordinate(i: int, x: Float[Array, " d"]) -> None:
    if not -x.size <= i < x.size:
        raise InputError(f"coordinate {i} does not exist at a point of shape {x.shape}")
