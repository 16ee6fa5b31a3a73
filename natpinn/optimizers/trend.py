"""Whether the loss falls, seen through the noise of its batches."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

SHORTEST = 5.0  # steps that the fast average remembers at least; the slow one four times as many
FAST, SLOW = 1 / 20, 1 / 5  # of the age that they remember later
PATIENCE = 20.0  # steps in which no loss is too long ago


class Trend(NamedTuple):
    """Two exponential averages of the logarithm of the loss: a scaled loss has the same trend."""

    fast: Float[Array, ""]
    slow: Float[Array, ""]
    is_started: Bool[Array, ""]
    lowest: Float[Array, ""]  # of the fast one
    since: Float[Array, ""]  # steps since then
    steps: Float[Array, ""]  # all that were followed

    @classmethod
    def start(cls) -> "Trend":
        zero = jnp.array(0.0)
        return cls(zero, zero, jnp.array(False), zero, zero, zero)

    def follow(self, loss: Float[Array, ""], age: Float[Array, ""]) -> "Trend":
        """With the loss of a new batch, if it has one; a run of greater age looks further back."""
        log = jnp.log(loss)

        def average(old: Array, window: Array) -> Array:
            new = jnp.where(self.is_started, old + (log - old) / window, log)
            return jnp.where(jnp.isfinite(log), new, old)

        fast = average(self.fast, jnp.maximum(SHORTEST, FAST * age))
        slow = average(self.slow, jnp.maximum(4 * SHORTEST, SLOW * age))
        is_lowest = ~self.is_started | (fast < self.lowest)
        lowest = jnp.where(is_lowest, fast, self.lowest)
        since = jnp.where(is_lowest, 0.0, self.since + 1)
        return Trend(fast, slow, jnp.array(True), lowest, since, self.steps + 1)

    @property
    def is_lowest(self) -> Bool[Array, ""]:
        return self.since == 0

    @property
    def is_rising(self) -> Bool[Array, ""]:
        return self.fast > self.slow

    def is_above(self, factor: float) -> Bool[Array, ""]:
        """Whether the loss is so many times its lowest."""
        return self.fast > self.lowest + jnp.log(factor)

    def is_long_above(self, factor: float) -> Bool[Array, ""]:
        """Whether it is, and the lowest was long ago, half of the run."""
        return (2 * self.since > self.steps + PATIENCE) & self.is_above(factor)

    def forgiven(self, goes_back: Bool[Array, ""]) -> "Trend":
        """Where a run goes back to its lowest loss: with the loss of now in place of it."""
        lowest = jnp.where(goes_back, self.fast, self.lowest)
        return self._replace(lowest=lowest, since=jnp.where(goes_back, 0.0, self.since))

    def is_jump(self, loss: Float[Array, ""], factor: float) -> Bool[Array, ""]:
        """Whether a loss is so many times what it was, or no number at all."""
        return self.is_started & ~(jnp.log(loss) < self.fast + jnp.log(factor))
