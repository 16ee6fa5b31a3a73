"""The network that is used when none is given."""

from collections.abc import Callable, Sequence
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..checks import whole
from ..errors import InputError


def tanh_sin(x: Float[Array, " m"]) -> Float[Array, " m"]:
    """tanh of the first half of a layer's values, for fronts, and sin of the others, for waves.

    **Arguments:** `x`, of shape (m,).

    **Returns:** the values of the next layer's inputs, of the same shape.

        import jax
        import natpinn

        net = natpinn.MLP(2, [32, 32], key=jax.random.key(0), activation=natpinn.tanh_sin)
    """
    half = x.size // 2
    return jnp.concatenate([jnp.tanh(x[:half]), jnp.sin(x[half:])])


class MLP(eqx.Module):
    """A network x ↦ W_L tanh(… tanh(W₁x + b₁) …) + b_L, of one point.

    Weights and biases start uniform in ±1/√fan_in, with fan_in the inputs of their layer.

    **Arguments:**

    - `inputs`: how many coordinates a point has.
    - `widths`: of the hidden layers, from the first to the last, as `[64, 64]`.
    - `outputs`: how many values the network has. Default: `"scalar"`, one number of shape ().
    - `key`: a random key of JAX, of which the first weights are a function.
    - `activation`: the function between layers, smooth enough for the equation. Default: tanh.
    - `embedding`: what is done with a point first, as `Scaled(lower, upper)`. Default: nothing.

    **Raises:** `InputError` for widths that are not a list of whole numbers from 1.

        import jax
        import jax.numpy as jnp
        import natpinn

        net = natpinn.MLP(2, [64, 64], outputs=3, key=jax.random.key(0))
        net(jnp.array([0.5, 0.5]))  # three values
    """

    layers: tuple[eqx.nn.Linear, ...]
    embedding: Callable[[Array], Array] | None
    activation: Callable[[Array], Array] = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        widths: Sequence[int],
        outputs: int | Literal["scalar"] = "scalar",
        *,
        key: PRNGKeyArray,
        activation: Callable[[Array], Array] = jnp.tanh,
        embedding: Callable[[Array], Array] | None = None,
    ):
        widths = check_widths(widths)
        first = inputs if embedding is None else jax.eval_shape(embedding, jnp.zeros(inputs)).size
        self.layers = _draw_layers((first, *widths, outputs), key)
        self.embedding = embedding
        self.activation = activation

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, "..."]:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)


@eqx.filter_jit  # one program for all layers
def _draw_layers(
    sizes: tuple[int | Literal["scalar"], ...], key: PRNGKeyArray
) -> tuple[eqx.nn.Linear, ...]:
    keys = jax.random.split(key, len(sizes) - 1)
    pairs = zip(sizes[:-1], sizes[1:], keys, strict=True)
    return tuple(eqx.nn.Linear(a, b, key=k) for a, b, k in pairs)


def check_widths(widths: Sequence[int]) -> tuple[int, ...]:
    """The widths of hidden layers."""
    if not isinstance(widths, Sequence) or isinstance(widths, str):
        raise InputError(f"widths are a list, as in [{widths}], got {widths!r}")
    return tuple(whole(width, "a width") for width in widths)
