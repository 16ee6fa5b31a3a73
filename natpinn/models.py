"""Networks: one point in, one number or several out. Any Equinox module is a model too.

The float64 JAX arrays of a module are what is trained; NumPy arrays in it are constants.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from .errors import InputError, whole
from .precision import require_float64

Theta = PyTree[Float[Array, "..."]]  # the trainable leaves of a model


class MLP(eqx.Module):
    """x ↦ W_L tanh(… tanh(W₁x + b₁) …) + b_L, weights and biases uniform in ±1/√fan_in."""

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
def _draw_layers(sizes: tuple[Any, ...], key: PRNGKeyArray) -> tuple[eqx.nn.Linear, ...]:
    keys = jax.random.split(key, len(sizes) - 1)
    pairs = zip(sizes[:-1], sizes[1:], keys, strict=True)
    return tuple(eqx.nn.Linear(a, b, key=k) for a, b, k in pairs)


def check_widths(widths: Sequence[int]) -> tuple[int, ...]:
    """The widths of hidden layers."""
    if not isinstance(widths, Sequence) or isinstance(widths, str):
        raise InputError(f"widths are a list, as in [{widths}], got {widths!r}")
    return tuple(whole(width, "a width") for width in widths)


class Scaled(eqx.Module):
    """A box as [−1, 1]ᵈ: a network need not know in which units its inputs are.

    Coordinates in which the box has no end, or no extent, stay as they are.
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
    """xᵢ ↦ (sin 2πxᵢ/Lᵢ, cos 2πxᵢ/Lᵢ): exactly periodic inputs; a period of 0 keeps xᵢ as it is."""

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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class FourierFeatures(eqx.Module):
    """x ↦ (sin Bx, cos Bx) with constant Gaussian frequencies B of the given scale."""

    frequencies: np.ndarray

    def __init__(self, inputs: int, features: int, scale: float = 1.0, *, key: PRNGKeyArray):
        self.frequencies = scale * np.asarray(jax.random.normal(key, (features, inputs)))

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " e"]:
        angles = self.frequencies @ x
        return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)])


class Applied(eqx.Module):
    """A (parameters, apply) pair as a model: x ↦ apply(parameters, x)."""

    parameters: PyTree
    apply: Callable[[PyTree, Array], Array] = eqx.field(static=True)

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, "..."]:
        return self.apply(self.parameters, x)


def as_model(model: Any) -> Any:
    """A model from an Equinox module, or from a (parameters, apply) pair."""
    if isinstance(model, tuple) and len(model) == 2 and callable(model[1]):
        parameters, apply = model
        model = Applied(jax.tree.map(jnp.asarray, parameters), apply)
    if not callable(model):
        raise InputError(
            f"a model is a module that can be called at one point, or a (parameters, apply) pair, "
            f"got {type(model).__name__}"
        )
    require_float64(model, "the model's ")
    if not jax.tree.leaves(trainable(model)):
        raise InputError(
            "the model has nothing to train: no float64 JAX array in it; a function that builds a "
            "model is called first, and a coefficient is written jnp.array(1.0)"
        )
    return model


def trainable(model: Any) -> Theta:
    """The trainable leaves of a model; `None` elsewhere."""
    return split(model)[0]


def split(model: Any) -> tuple[Theta, Any]:
    """The trainable leaves, and the rest; `eqx.combine` puts them together."""
    return eqx.partition(
        model, lambda leaf: isinstance(leaf, jax.Array) and eqx.is_inexact_array(leaf)
    )


def numbers(tree: Any) -> Any:
    """All arrays, JAX's and NumPy's; `None` elsewhere."""
    return eqx.filter(tree, lambda leaf: isinstance(leaf, jax.Array | np.ndarray))


def parameter_count(model: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(trainable(model)))
