"""Whether the loss falls, seen through the noise of its batches."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

SHORTEST = 5.0  # steps that the fast average remembers at least; the slow one four times as many
FAST, SLOW = 1 / 20, 1 / 5  # of the age that they remember later


class Trend(NamedTuple):
    """Two exponential averages of the logarithm of the loss: a scaled loss has the same trend."""

    fast: Float[Array, ""]
    slow: Float[Array, ""]
    is_started: Bool[Array, ""]

    @classmethod
    def start(cls) -> "Trend":
        return cls(jnp.array(0.0), jnp.array(0.0), jnp.array(False))

    def follow(self, loss: Float[Array, ""], age: Float[Array, ""]) -> "Trend":
        """With the loss of a new batch, if it has one; a run of greater age looks further back."""
        log = jnp.log(loss)

        def average(old: Array, window: Array) -> Array:
            new = jnp.where(self.is_started, old + (log - old) / window, log)
            return jnp.where(jnp.isfinite(log), new, old)

        fast = average(self.fast, jnp.maximum(SHORTEST, FAST * age))
        slow = average(self.slow, jnp.maximum(4 * SHORTEST, SLOW * age))
        return Trend(fast, slow, jnp.array(True))

    @property
    def is_rising(self) -> Bool[Array, ""]:
        return self.fast > self.slow

    def is_jump(self, loss: Float[Array, ""], factor: float) -> Bool[Array, ""]:
        """Whether a loss is so many times what it was, or no number at all."""
        return self.is_started & ~(jnp.log(loss) < self.fast + jnp.log(factor))
