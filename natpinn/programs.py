"""Programs that JAX has traced, those inside them, and what is known of them from shapes."""

from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

if TYPE_CHECKING:
    from jax.extend.core import Jaxpr, JaxprEqn

Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., object])
REMEMBERED = 256  # results of `from_shapes`


def traced_once(function: Function) -> Function:
    """A function that becomes part of the programs that call it, and is traced once for all of
    them, as long as shapes and whatever is no array stay the same."""
    jit: Any = eqx.filter_jit
    return cast(Function, jit(function, inline=True))


def compile_together(*calls: tuple[Any, tuple[PyTree, ...]]) -> None:
    """Compile functions of `equinox.filter_jit`, each for its arguments, side by side.

    They are traced one after another, by this thread, whose settings of JAX hold. Nothing is
    computed; a call with such arguments then finds its program. Several processes compile one
    function after another too, so that all of them do the same at the same time.
    """
    with ThreadPoolExecutor(len(calls) if jax.process_count() == 1 else 1) as threads:
        jobs = [threads.submit(function.lower(*arguments).compile) for function, arguments in calls]
    for job in jobs:
        job.result()  # raises what was raised there


def from_shapes(function: Callable[..., Result], *arguments: PyTree) -> Result:
    """function(*arguments) with the shapes of JAX's arrays in place of them; slow the first time.

    The result is remembered by the shapes of arrays and the values of everything else, unless some
    of these cannot be hashed.
    """
    leaves, structure = jax.tree.flatten(arguments)
    described = tuple(_described(leaf) for leaf in leaves)
    known = all(isinstance(leaf, Hashable) for leaf in described)
    key = tuple((type(leaf), leaf) for leaf in described)  # 1 and True are not the same
    return (_remembered if known else _call)(function, structure, key)


class _Constant:
    """An array of NumPy, known by what it holds."""

    def __init__(self, array: np.ndarray):
        self.array = array
        self._key = (array.shape, array.dtype.str, array.tobytes())

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Constant) and self._key == other._key


def _described(leaf: Any) -> object:
    """The shape of an array that is traced, and anything else as it is."""
    if isinstance(leaf, jax.Array):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    is_plain = isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject
    return _Constant(leaf) if is_plain else leaf


def _call(
    function: Callable[..., Result], structure: Hashable, leaves: tuple[tuple[type, object], ...]
) -> Result:
    found = [leaf.array if isinstance(leaf, _Constant) else leaf for _, leaf in leaves]
    return function(*jax.tree.unflatten(structure, found))


_remembered = lru_cache(REMEMBERED)(_call)


def inner_programs(equation: "JaxprEqn") -> "list[Jaxpr]":
    """The bodies of a loop, a condition or a call."""
    found = []
    for parameter in jax.tree.leaves(equation.params, is_leaf=lambda p: hasattr(p, "eqns")):
        inner = getattr(parameter, "jaxpr", parameter)
        if hasattr(inner, "eqns"):
            found.append(inner)
    return found
