"""Networks: one point in, one number or several out. Any Equinox module is a model too.

The float64 JAX arrays of a module are what is trained; NumPy arrays in it are constants.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..checks import require_floats
from ..errors import InputError

Theta = PyTree[Float[Array, "..."]]  # the trainable leaves of a model


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
    require_floats(model, "the model's ")
    if not jax.tree.leaves(trainable(model)):
        raise InputError(
            "the model has nothing to train: no float64 JAX array in it; a function that builds a "
            "model is called first, and a coefficient is written jnp.array(1.0)"
        )
    return model


def trainable(model: PyTree) -> Theta:
    """The trainable leaves of a model; `None` elsewhere."""
    return split(model)[0]


def split(model: PyTree) -> tuple[Theta, PyTree]:
    """The trainable leaves, and the rest; `eqx.combine` puts them together."""
    return eqx.partition(
        model, lambda leaf: isinstance(leaf, jax.Array) and eqx.is_inexact_array(leaf)
    )


def numbers(tree: PyTree) -> PyTree:
    """All arrays, JAX's and NumPy's; `None` elsewhere."""
    return eqx.filter(tree, lambda leaf: isinstance(leaf, jax.Array | np.ndarray))


def parameter_count(model: PyTree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(trainable(model)))
