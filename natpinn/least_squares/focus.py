"""Which of many candidates a batch keeps: more where the residual is large."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

ROUNDS = 20  # of sharing out what candidates lose that would be kept more than once
TINY = 1e-30


def chances(squares: Float[Array, " m"], count: int, share: float) -> Float[Array, " m"]:
    """The probability that each candidate is kept, where `count` of them are.

    A share of it is in proportion to the square of the residual, the rest is the same for all. What
    is above 1 is shared out among the others.
    """
    finite = jnp.where(jnp.isfinite(squares), squares, 0.0)
    relative = finite / jnp.maximum(finite.max(), TINY)  # sums of squares may be infinite
    followed = relative / jnp.maximum(relative.sum(), TINY)
    wanted = count * ((1 - share) / len(squares) + share * followed)

    def share_out(chance: Float[Array, " m"], _: None) -> tuple[Float[Array, " m"], None]:
        kept = jnp.minimum(chance, 1.0)
        open_ = jnp.where(kept < 1, kept, 0.0)
        return kept + (count - kept.sum()) * open_ / jnp.maximum(open_.sum(), TINY), None

    shared, _ = jax.lax.scan(share_out, wanted, None, length=ROUNDS)
    return jnp.minimum(shared, 1.0)


def keep(chance: Float[Array, " m"], count: int, key: PRNGKeyArray) -> Int[Array, " n"]:
    """Systematic sampling: `count` candidates, each with its probability, none of them twice."""
    ends = jnp.cumsum(chance)
    marks = (jnp.arange(count) + jax.random.uniform(key)) * ends[-1] / count
    return jnp.searchsorted(ends, marks, side="right").clip(0, len(chance) - 1)
