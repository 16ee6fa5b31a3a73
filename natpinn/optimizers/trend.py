"""Whether the loss falls, on average over the noise of its batches."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

SHORTEST = 5.0  # steps that the fast average remembers at least; the slow one four times as many
FAST, SLOW = 1 / 20, 1 / 5  # of the age that they remember later
PATIENCE = 20.0  # steps, added to a run's length: long ago is half of that


class Trend(NamedTuple):
    """Two exponential averages of the logarithm of the loss: a scaled loss has the same trend."""

    fast: Float[Array, ""]
    slow: Float[Array, ""]
    is_started: Bool[Array, ""]
    lowest: Float[Array, ""]  # of the fast one
    since: Float[Array, ""]  # steps since the lowest
    steps: Float[Array, ""]  # all that were followed
    first: Float[Array, ""]  # of the fast one

    @classmethod
    def start(cls) -> "Trend":
        zero = jnp.array(0.0)
        return cls(zero, zero, jnp.array(False), zero, zero, zero, zero)

    def follow(
        self, loss: Float[Array, ""], age: Float[Array, ""], counts: Bool[Array, ""] | bool = True
    ) -> "Trend":
        """The trend with the loss of a new batch, if that is finite.

        The greater the age of a run, the further back its averages reach. A loss that does not
        count is not taken for the lowest.
        """
        log = jnp.log(loss)

        def average(old: Array, window: Array) -> Array:
            new = jnp.where(self.is_started, old + (log - old) / window, log)
            return jnp.where(jnp.isfinite(log), new, old)

        fast = average(self.fast, jnp.maximum(SHORTEST, FAST * age))
        slow = average(self.slow, jnp.maximum(4 * SHORTEST, SLOW * age))
        is_lowest = ~self.is_started | ((fast < self.lowest) & counts)
        lowest = jnp.where(is_lowest, fast, self.lowest)
        since = jnp.where(is_lowest, 0.0, self.since + 1)
        first = jnp.where(self.is_started, self.first, fast)
        return Trend(fast, slow, jnp.array(True), lowest, since, self.steps + 1, first)

    @property
    def is_lowest(self) -> Bool[Array, ""]:
        return self.since == 0

    @property
    def is_rising(self) -> Bool[Array, ""]:
        return self.fast > self.slow

    def has_fallen(self, factor: float) -> Bool[Array, ""]:
        """Whether the lowest loss was so many times below the first one."""
        return self.lowest < self.first - jnp.log(factor)

    def is_above(self, factor: float) -> Bool[Array, ""]:
        """Whether the loss is so many times its lowest."""
        return self.fast > self.lowest + jnp.log(factor)

    def is_long_above(self, factor: float) -> Bool[Array, ""]:
        """Whether the loss is so many times its lowest, from the first half of the steps."""
        return (2 * self.since > self.steps + PATIENCE) & self.is_above(factor)

    def forgiven(self, goes_back: Bool[Array, ""]) -> "Trend":
        """The trend after going back to the lowest loss: the present loss is the lowest now."""
        lowest = jnp.where(goes_back, self.fast, self.lowest)
        return self._replace(lowest=lowest, since=jnp.where(goes_back, 0.0, self.since))

    def is_jump(self, loss: Float[Array, ""], factor: float) -> Bool[Array, ""]:
        """Whether a loss is so many times the average so far, or is not a number."""
        return self.is_started & ~(jnp.log(loss) < self.fast + jnp.log(factor))
