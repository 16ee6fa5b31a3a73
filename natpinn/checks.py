"""Checks of what users pass: each names the value, the reason and the remedy."""

import operator
from collections.abc import Sequence
from typing import SupportsIndex

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .errors import InputError
from .precision import real

MOST = 2**53  # up to here a float64 has all whole numbers
LONGEST = 100  # letters of a value in a message


def check_flag(value: object, name: str) -> None:
    """Check that a value is true or false: the text "False" would count as true."""
    if not isinstance(value, bool):
        raise InputError(f"{name} is true or false, got {value!r}")


def whole(value: SupportsIndex, name: str, least: int = 1) -> int:
    """A whole number below 2**53, Python's or NumPy's; True is none."""
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None or found < least:
        raise InputError(f"{name} must be a whole number from {least}, got {shown(value)}")
    if found >= MOST:
        raise InputError(f"{name} must be a whole number below 2**53, got {shown(value)}")
    return found


def shown(value: object) -> str:
    """A value as a message shows it, which may be a number of thousands of digits."""
    try:
        text = repr(value)
    except ValueError:  # more digits than Python writes
        return "a number of thousands of digits"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def floats(value: object, name: str) -> Float[Array, "..."]:
    """`value` as an array in the precision of here; less is an error, not a silent upcast."""
    dtype = getattr(value, "dtype", None)
    is_float = dtype is not None and jnp.issubdtype(dtype, jnp.inexact)
    if is_float and dtype not in (np.float64, real()):
        raise InputError(
            f"{name} must be float64, got {dtype}: digits lost before natpinn sees them cannot be "
            f"recovered; build it in double precision, or cast it with .astype('float64') if that "
            f"is what you want; precision = float32 computes everything with less"
        )
    try:
        if not isinstance(value, jax.Array):
            value = np.asarray(value, np.float64)  # by NumPy, which compiles nothing
        return jnp.asarray(value, dtype=real())
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} must be numbers, got {shown(value)}") from error


def require_floats(tree: PyTree, name: str) -> None:
    """Every floating-point array of `tree` has the precision of here, or float64."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if eqx.is_inexact_array(leaf):
            floats(leaf, f"{name}{jax.tree_util.keystr(path)}")


def words(value: str | Sequence[str], name: str, count: int) -> tuple[str, ...]:
    """So many different names, in one text or one by one: "x y" or ("x", "y")."""
    found = tuple(value.split() if isinstance(value, str) else value)
    are_words = all(isinstance(word, str) and word.isidentifier() for word in found)
    if not are_words or len(found) != count or len(set(found)) != count:
        raise InputError(
            f"{name} needs {count} different {'name' if count == 1 else 'names'} of letters and "
            f"digits, as in 'x y z', got {value!r}"
        )
    return found
