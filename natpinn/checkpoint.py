"""Parameters on disk: arrays under the names of their leaves, nothing that could run."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .errors import InputError


def save(path: Path, tree: Any) -> None:
    """Write the arrays of a pytree, each under the path of its leaf."""
    with _checkpointer() as checkpointer:
        checkpointer.save(path.absolute(), named_arrays(tree), force=True)


def restore(path: Path, like: Any) -> Any:
    """Read arrays back into a pytree of the same leaves and shapes as `like`."""
    if not path.is_dir():
        raise InputError(f"{path} does not exist: the run has saved nothing there")
    wanted = named_arrays(like)
    with _checkpointer() as checkpointer:
        stored = checkpointer.metadata(path.absolute()).item_metadata or {}
        found = {name: tuple(leaf.shape) for name, leaf in stored.items()}
        expected = {name: leaf.shape for name, leaf in wanted.items()}
        if found != expected:
            differing = {name for name, _ in found.items() ^ expected.items()}
            raise InputError(
                f"{path} does not fit the model: {min(differing)!r} is stored with shape "
                f"{found.get(min(differing))}, the model has {expected.get(min(differing))}; pass "
                f"the model that was trained as `like=`"
            )
        arrays = checkpointer.restore(path.absolute(), wanted)
    leaves, structure = jax.tree.flatten(like)
    restored = [jnp.asarray(arrays[name]) for name in wanted]
    return structure.unflatten(
        [
            jax.random.wrap_key_data(new) if _is_key(old) else new
            for old, new in zip(leaves, restored, strict=True)
        ]
    )


def named_arrays(tree: Any) -> dict[str, np.ndarray]:
    """The leaves of a pytree under names that a file system can hold; typed keys as their data."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(
            jax.random.key_data(leaf) if _is_key(leaf) else leaf
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _checkpointer() -> Any:
    """One that this process uses by itself, whatever other processes there are."""
    import orbax.checkpoint as ocp

    this = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=this,
        active_processes={this} if jax.process_count() > 1 else None,
        barrier_sync_key_prefix=f"natpinn-{this}" if jax.process_count() > 1 else None,
    )
    return ocp.StandardCheckpointer(multiprocessing_options=alone)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
