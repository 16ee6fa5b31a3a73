"""Where in the unit cube to put points: independent or low-discrepancy, new each time or held."""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

BITS = 32


class Sampler(eqx.Module):
    """n points in [0, 1]ᵈ, drawn inside the compiled step."""

    @abstractmethod
    def unit(self, key: PRNGKeyArray, n: int, d: int) -> Float[Array, "n d"]: ...

    @property
    def fresh(self) -> "Sampler":
        """A sampler of the same kind whose points follow the key."""
        return self


class Uniform(Sampler):
    """Independent, uniform points."""

    def unit(self, key: PRNGKeyArray, n: int, d: int) -> Float[Array, "n d"]:
        return jax.random.uniform(key, (n, d))


class Sobol(Sampler):
    """Sobol points, scrambled anew for each key by a random linear map of the digits and a shift.

    Every point is uniform, so averages stay unbiased; together they fill the cube evenly, so the
    averages of smooth functions vary less. A power of two of them fills it best.
    """

    def unit(self, key: PRNGKeyArray, n: int, d: int) -> Float[Array, "n d"]:
        matrix_key, shift_key = jax.random.split(key)
        shift = jax.random.bits(shift_key, (d,), jnp.uint32)
        # Column j of the scramble: digit j itself, and random digits below it (Matoušek 1998).
        below = jax.random.bits(matrix_key, (BITS, d), jnp.uint32)
        digit = jnp.uint32(1) << jnp.arange(BITS, dtype=jnp.uint32)[:, None]
        columns = (below & (digit - 1)) | digit
        points = jnp.asarray(_sobol_integers(n, d))
        scrambled = jnp.broadcast_to(shift, (n, d))
        for j in range(BITS):
            scrambled ^= jnp.where((points >> j) & 1 == 1, columns[j], jnp.uint32(0))
        return (scrambled.astype(jnp.float64) + 0.5) / 2.0**BITS


class Held(Sampler):
    """The same points of another sampler at every step, whatever the key."""

    sampler: Sampler = Uniform()
    seed: int = eqx.field(static=True, default=0)

    def unit(self, key: PRNGKeyArray, n: int, d: int) -> Float[Array, "n d"]:
        return self.sampler.unit(jax.random.key(self.seed), n, d)

    @property
    def fresh(self) -> Sampler:
        return self.sampler


def _sobol_integers(n: int, d: int) -> UInt32[np.ndarray, "n d"]:
    """The first n points of the Sobol sequence, as 32-bit integers."""
    from scipy.stats import qmc  # slow to load, and few runs need it

    doublings = max(n - 1, 1).bit_length()
    points = qmc.Sobol(d, scramble=False, bits=BITS).random_base2(doublings)[:n]
    return (points * 2.0**BITS).astype(np.uint32)
