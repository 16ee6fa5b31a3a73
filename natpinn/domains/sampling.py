"""Where in the unit cube to put points: independent or low-discrepancy, new each time or held."""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from ..checks import whole
from ..errors import InputError
from ..precision import real

BITS = 32


class Sampler(eqx.Module):
    """How points of the unit cube [0, 1]ᵈ are drawn: the contract of every sampler.

    A subclass defines `unit(key, n, d)`. If its points do not depend on the key, it overrides
    `fresh` too, so that errors are measured on points that were not trained on.

        import jax
        import jax.numpy as jnp
        import natpinn

        class Stratified(natpinn.Sampler):  # one point in each of n layers of every coordinate
            def unit(self, key, n, d):
                place, order = jax.random.split(key)
                layers = jnp.arange(n)[:, None] + jax.random.uniform(place, (n, d))
                return jax.random.permutation(order, layers / n, axis=0, independent=True)

        points = natpinn.Box.unit(2).sample(jax.random.key(0), 8, Stratified())
    """

    @abstractmethod
    def unit(self, key: PRNGKeyArray, n: int, d: int) -> Float[Array, "n d"]:
        """n points in [0, 1]ᵈ, of shape (n, d); n and d are constants of the compiled step."""

    @property
    def fresh(self) -> "Sampler":
        """A sampler of the same kind whose points follow the key."""
        return self


class Uniform(Sampler):
    """Independent points, uniform in the unit cube: the default of every condition.

    `Sobol` fills the cube more evenly.

        import natpinn

        inside = natpinn.Condition(
            lambda u, x: natpinn.laplacian(u)(x), natpinn.Box.unit(2), sampler=natpinn.Uniform()
        )
    """

    def unit(self, key: PRNGKeyArray, n: int, d: int) -> Float[Array, "n d"]:
        return jax.random.uniform(key, (n, d))


class Sobol(Sampler):
    """Sobol points, scrambled anew for each key by a random linear map of the digits and a shift.

    Every point is uniform, so averages stay unbiased. Together the points fill the cube evenly, so
    averages of smooth functions vary less from batch to batch; a power of two of them fills it
    best.

        import natpinn

        inside = natpinn.Condition(
            lambda u, x: natpinn.laplacian(u)(x),
            natpinn.Box.unit(2),
            points=256,
            sampler=natpinn.Sobol(),
        )
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
        return (scrambled.astype(real()) + 0.5) / 2.0**BITS


class Held(Sampler):
    """The same points of another sampler at every step, whatever the key.

    **Arguments:**

    - `sampler`: which points are held. Default: `Uniform()`.
    - `seed`: another seed holds other points. Default: 0.

        import natpinn

        grid = natpinn.Held(natpinn.Sobol(), seed=1)
        problem = natpinn.problems.get("poisson_2d").with_sampler(grid)
    """

    sampler: Sampler = Uniform()
    seed: int = eqx.field(static=True, default=0)

    def unit(self, key: PRNGKeyArray, n: int, d: int) -> Float[Array, "n d"]:
        return self.sampler.unit(jax.random.key(self.seed), n, d)

    @property
    def fresh(self) -> Sampler:
        return self.sampler


class Focused(Sampler):
    """Points of another sampler, kept more often where the residual is large.

    At each step so many candidates are drawn for each point of a batch. A candidate is kept with a
    probability that is, for a share of the batch, in proportion to the square of its residual, and
    at most 1; its rows in the loss are multiplied with what makes the loss the same on average. It
    needs new points at each step.

    **Arguments:**

    - `sampler`: which points are candidates. Default: `Uniform()`.
    - `candidates`: how many for each point, from 2. Default: 8.
    - `share`: of the batch that follows the residual, above 0 and below 1. More helps with fronts
      and costs digits where the residual is everywhere. Default: 0.3.

    **Raises:** `InputError` for a sampler of held points, and for numbers out of their range.

        import natpinn

        sharp = natpinn.Focused(natpinn.Sobol(), candidates=16)
        problem = natpinn.problems.get("poisson_2d").with_sampler(sharp)
    """

    sampler: Sampler = Uniform()
    candidates: int = eqx.field(static=True, default=8)
    share: float = eqx.field(static=True, default=0.3)

    def __check_init__(self):
        if not isinstance(self.sampler, Sampler) or isinstance(self.sampler, Held | Focused):
            raise InputError(
                f"candidates are drawn anew at each step, as by Uniform() or Sobol(), got "
                f"{self.sampler!r}"
            )
        whole(self.candidates, "candidates", least=2)
        is_number = isinstance(self.share, int | float) and not isinstance(self.share, bool)
        if not (is_number and 0 < self.share < 1):
            raise InputError(f"share must be above 0 and below 1, got {self.share!r}")

    def unit(self, key: PRNGKeyArray, n: int, d: int) -> Float[Array, "n d"]:
        """Candidates alone: a `LeastSquares` chooses among them."""
        return self.sampler.unit(key, n, d)

    @property
    def fresh(self) -> Sampler:
        return self.sampler


def _sobol_integers(n: int, d: int) -> UInt32[np.ndarray, "n d"]:
    """The first n points of the Sobol sequence, as 32-bit integers."""
    from scipy.stats import qmc  # slow to load, and few runs need it

    doublings = max(n - 1, 1).bit_length()
    points = qmc.Sobol(d, scramble=False, bits=BITS).random_base2(doublings)[:n]
    return (points * 2.0**BITS).astype(np.uint32)
