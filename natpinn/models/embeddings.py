"""What a network may do with its inputs first: constants, not trained."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..errors import InputError


class Scaled(eqx.Module):
    """The map of a box to [−1, 1]ᵈ, so that a network need not know in which units its inputs are.

    **Arguments:** `lower`, `upper`, the corners of the box, d numbers each. Coordinates in which
    the box has no end, or no extent, stay as they are.

    **Raises:** `InputError` for corners of different sizes.

        import jax
        import natpinn

        box = natpinn.Box([0, 0], [1e-3, 5e3])
        net = natpinn.MLP(2, [32], key=jax.random.key(0), embedding=natpinn.Scaled(*box.bounds))
    """

    middle: np.ndarray
    half: np.ndarray

    def __init__(self, lower: Float[Array, " d"], upper: Float[Array, " d"]):
        low, high = np.asarray(lower, float), np.asarray(upper, float)
        if low.ndim != 1 or low.shape != high.shape:
            raise InputError(f"a box has two corners, got shapes {low.shape} and {high.shape}")
        is_bounded = np.isfinite(low) & np.isfinite(high) & (high > low)
        low, high = np.where(is_bounded, low, -1.0), np.where(is_bounded, high, 1.0)
        self.half = high / 2 - low / 2
        self.middle = low + self.half

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        if x.shape != self.half.shape:
            raise InputError(f"a box in {self.half.size} dimensions, and a point of {x.shape}")
        return (x - self.middle) / self.half


class Periodic(eqx.Module):
    """The map xᵢ ↦ (sin 2πxᵢ/Lᵢ, cos 2πxᵢ/Lᵢ), with which a network is exactly periodic.

    **Arguments:** `periods`, a tuple with the period Lᵢ of each coordinate, in its unit; a
    coordinate with a period of 0 stays as it is.

    **Raises:** `InputError` for periods that are not a tuple of numbers.

        import jax
        import natpinn

        ring = natpinn.Periodic((0, 2.0))  # time, and a coordinate of period 2
        net = natpinn.MLP(2, [32], key=jax.random.key(0), embedding=ring)
    """

    periods: tuple[float, ...] = eqx.field(static=True)

    def __check_init__(self):
        if not isinstance(self.periods, tuple) or not all(map(_is_number, self.periods)):
            raise InputError(
                f"periods are a tuple of numbers, as in (1.0, 0), got {self.periods!r}"
            )

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " e"]:
        if len(self.periods) != x.size:
            raise InputError(
                f"one period per coordinate: got {len(self.periods)} periods at a point of "
                f"{x.size} coordinates; write 0 for a coordinate that is not periodic"
            )
        parts = []
        for i, period in enumerate(self.periods):
            angle = 2 * jnp.pi * x[i] / period if period else x[i]
            parts += [jnp.sin(angle), jnp.cos(angle)] if period else [angle]
        return jnp.stack(parts)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class FourierFeatures(eqx.Module):
    """The map x ↦ (sin Bx, cos Bx) with constant Gaussian frequencies B, for fast oscillations.

    **Arguments:**

    - `inputs`: how many coordinates a point has.
    - `features`: how many frequencies there are; the network gets twice as many inputs.
    - `scale`: the standard deviation of the frequencies, in radians per unit of x. A larger one is
      for faster oscillations. Default: 1.
    - `key`: a random key of JAX, of which the frequencies are a function.

        import jax
        import natpinn

        waves = natpinn.FourierFeatures(2, 16, scale=5.0, key=jax.random.key(1))
        net = natpinn.MLP(2, [32], key=jax.random.key(0), embedding=waves)
    """

    frequencies: np.ndarray

    def __init__(self, inputs: int, features: int, scale: float = 1.0, *, key: PRNGKeyArray):
        self.frequencies = scale * np.asarray(jax.random.normal(key, (features, inputs)))

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " e"]:
        angles = self.frequencies @ x
        return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)])
