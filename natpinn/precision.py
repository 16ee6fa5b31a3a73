"""Numbers of 64 bits, or of 32 for devices that are slow with 64."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

DOUBLE = "float64"
PRECISIONS = {DOUBLE: np.float64, "float32": np.float32}
TRUNCATED = "Explicitly requested dtype float64"  # how a warning of JAX begins
Tree = TypeVar("Tree")


def real() -> DTypeLike:
    """The type of floating-point numbers that arrays have here: float64, unless in `computing`."""
    is_double = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    return np.float64 if is_double else np.float32


def digits() -> float:
    """How many digits numbers have here, as a share of those of float64: 1, or 0.44."""
    return math.log(np.finfo(real()).eps) / math.log(np.finfo(np.float64).eps)


@contextmanager
def computing(precision: str) -> Iterator[None]:
    """Inside `with`, arrays are made in this precision, and constants of 64 bits rounded to it."""
    is_double = PRECISIONS[precision] is np.float64
    with jax.enable_x64(is_double), warnings.catch_warnings():
        warnings.filterwarnings("ignore", TRUNCATED, UserWarning)
        yield


def rounded(tree: Tree) -> Tree:
    """The same with arrays of float64 in the precision of here; other arrays stay as they are."""

    def round_leaf(leaf: object) -> object:
        is_double = isinstance(leaf, jax.Array) and leaf.dtype == np.float64
        return jnp.asarray(leaf, real()) if is_double else leaf

    return jax.tree.map(round_leaf, tree)
