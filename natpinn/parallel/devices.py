"""Several devices as one: a mesh, and what is spread or copied over it."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, PyTree

from ..errors import InputError
from .plan import Plan

DEVICES = "devices"  # the one axis of every mesh
REPLICATED, BY_ROWS = PartitionSpec(), PartitionSpec(DEVICES)

Index = int | Int[Array, ""]  # of a round of a loop, or where something starts
Result = TypeVar("Result")
Carry = TypeVar("Carry")


def make_mesh(devices: int | str | None) -> Mesh | None:
    """The first so many devices, or "all" of them; no mesh for one device in one process."""
    available = jax.devices()
    if devices in (None, 1) and jax.process_count() == 1:
        return None
    count = len(available) if devices == "all" else devices
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise InputError(f'devices must be a number or "all", got {devices!r}')
    if jax.process_count() > 1 and count != len(available):
        raise InputError(
            f"{jax.process_count()} processes share {len(available)} devices and must use all of "
            f"them, got {devices}: say --devices all"
        )
    if count > len(available):
        raise InputError(
            f"{count} devices were asked for and {len(available)} are there: "
            f"{', '.join(map(str, available[:8]))}"
        )
    return Mesh(np.array(available[:count]), (DEVICES,)) if count > 1 else None


def pad_points(points: PyTree, n: int) -> PyTree:
    """Points with copies of the last one, n in all."""

    def pad(leaf: jax.Array) -> jax.Array:
        widths = [(0, n - len(leaf)), *[(0, 0)] * (leaf.ndim - 1)]
        return leaf if len(leaf) == n else jnp.pad(leaf, widths, mode="edge")

    return jax.tree.map(pad, points)


def map_points(function: Callable[[PyTree], Result], points: PyTree, plan: Plan) -> Result:
    """The function at every point, so many at once and spread over the devices as planned.

    Reverse mode through it stores the points of a chunk only, and computes the rest again.
    """
    n = point_count(points)
    size = plan.chunk(n)
    chunks = -(-n // size)
    if chunks == 1:
        return _first(n, jax.vmap(function)(spread(pad_points(points, size), plan, BY_ROWS)))
    stacked = jax.tree.map(
        lambda leaf: leaf.reshape(chunks, size, *leaf.shape[1:]), pad_points(points, chunks * size)
    )
    each = jax.checkpoint(jax.vmap(function), prevent_cse=False)
    results = jax.lax.map(each, spread(stacked, plan, PartitionSpec(None, DEVICES)))
    return _first(n, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), results))


def on_each_device(
    function: Callable[..., Result],
    plan: Plan,
    in_specs: Sequence[PartitionSpec],
    out_specs: PartitionSpec,
) -> Callable[..., Result]:
    """The function run by every device on its own part; with one device, the function itself.

    Leaves of its arguments that are no arrays are the same on every device.
    """
    if plan.mesh is None:
        return function

    def call(*arguments: PyTree) -> Result:
        arrays, static = eqx.partition(arguments, eqx.is_array)

        def with_static(*arrays: PyTree) -> Result:
            return function(*eqx.combine(arrays, static))

        specs = tuple(in_specs)
        spread_out = jax.shard_map(
            with_static, mesh=plan.mesh, in_specs=specs, out_specs=out_specs, check_vma=False
        )
        return spread_out(*arrays)

    return call


def replicate(tree: PyTree, plan: Plan) -> PyTree:
    """The same values on every device, inside a program."""
    return spread(tree, plan, REPLICATED)


def place(tree: PyTree, plan: Plan) -> PyTree:
    """The same values on every device, outside of programs; leaves that are no arrays stay."""
    if plan.mesh is None:
        return tree
    sharding = NamedSharding(plan.mesh, REPLICATED)

    def place_leaf(leaf: object) -> Any:
        if not isinstance(leaf, jax.Array) or leaf.sharding == sharding:
            return leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(place_leaf(jax.random.key_data(leaf)))
        values = np.asarray(leaf)
        return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

    return jax.tree.map(place_leaf, tree)


def on_this_process(tree: PyTree) -> PyTree:
    """Arrays that several devices have copies of, as arrays of one device here."""

    def first_copy(leaf: object) -> object:
        if not isinstance(leaf, jax.Array) or len(leaf.sharding.device_set) == 1:
            return leaf
        return leaf.addressable_data(0)

    return jax.tree.map(first_copy, tree)


def loop(count: int, body: Callable[[Index, Carry], Carry], start: Carry) -> Carry:
    """`fori_loop`, without the loop where there is nothing to repeat."""
    return body(0, start) if count == 1 else jax.lax.fori_loop(0, count, body, start)


def point_count(points: PyTree) -> int:
    return len(jax.tree.leaves(points)[0])


def spread(tree: PyTree, plan: Plan, spec: PartitionSpec) -> PyTree:
    """The same values, placed on the devices as the specification says, inside a program."""
    if plan.mesh is None:
        return tree
    return jax.lax.with_sharding_constraint(tree, NamedSharding(plan.mesh, spec))


def _first(n: int, results: Result) -> Result:
    return jax.tree.map(lambda leaf: leaf if len(leaf) == n else leaf[:n], results)
