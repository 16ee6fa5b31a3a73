"""Arrays on disk under the names of their leaves, with checksums; no file holds code.

Orbax writes in the background, and either everything or nothing. It gets one array, the bytes of an
npz archive: many arrays would fail one by one on a full disk, and have no checksums.
"""

import contextlib
import io
import logging
import math
import os
import re
import secrets
import shutil
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..errors import InputError, NatpinnWarning
from ..files import FILE, FOLDER, is_kind, sync_folder, sync_tree
from ..parallel.devices import on_this_process
from ..parallel.plan import Plan
from ..training.snapshot import Snapshot

CONTENT = "npz"  # the name of the one array that holds the others
KEPT = 2  # checkpoints of a run
ADDED = (  # not in the checkpoints of earlier versions
    "plan.lapack_threads",
    "snapshot.state.optimizer.trend.first",  # which counts as a loss of 1
)
MARK = "_CHECKPOINT_METADATA"  # a file in everything that Orbax writes
TEMPORARY = ".orbax-checkpoint-tmp"  # what is being written, or was when a process died
UNFINISHED = re.compile(rf"\d{{1,18}}{re.escape(TEMPORARY)}(-[0-9a-f]{{16}})?", re.ASCII)
STEP = re.compile(r"0|[1-9]\d{0,17}", re.ASCII)  # the name of a checkpoint
SMALL_BYTES = 2**26  # that may be read of any checkpoint
HEADER = 2048  # bytes of an array's name, shape and type, in an archive
Kind = tuple[tuple[int, ...], str]  # the shape and the type of an array
Tree = TypeVar("Tree")


class Checkpoint(NamedTuple):
    """All that a run needs to go on."""

    snapshot: Snapshot
    plan: dict[str, np.ndarray]  # packed
    constants: PyTree  # of the model

    @classmethod
    def of(cls, snapshot: Snapshot, plan: Plan, constants: PyTree) -> "Checkpoint":
        return cls(snapshot, plan.packed(), constants)


class DamagedError(InputError):
    """What is on disk is not what was written."""


def write(path: Path, tree: PyTree) -> None:
    """The arrays of a pytree, each under the path of its leaf; all of them or nothing."""
    writer = Writer()
    writer.start(path, tree)
    writer.finish()


def read(path: Path, like: Tree) -> Tree:
    """Arrays in a pytree of the same leaves and shapes as `like`."""
    wanted = named_arrays(like)
    arrays = _read_arrays(path, wanted)
    leaves, structure = jax.tree.flatten(like)
    return structure.unflatten(
        [_like(old, arrays[name]) for name, old in zip(wanted, leaves, strict=True)]
    )


def latest(folder: Path, like: Tree) -> Tree | None:
    """The newest checkpoint that is whole, or None if there never was one.

    Damaged ones are removed when one before them is whole.
    """
    found = steps(folder)
    for step in reversed(found):
        try:
            tree = read(folder / str(step), like)
        except DamagedError as error:
            if step == found[0]:
                raise DamagedError(
                    f"{error}, and there is no older checkpoint: start the run again, in another "
                    f"folder"
                ) from error
            message = f"{error}: going on from the checkpoint before"
            warnings.warn(message, NatpinnWarning, stacklevel=2)
        else:
            for damaged in (s for s in found if s > step and jax.process_index() == 0):
                put_away(folder / str(damaged))
            return tree
    return None


def steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint."""
    if not is_kind(folder, FOLDER):
        return []
    names = (path.name for path in folder.iterdir() if is_kind(path, FOLDER))
    return sorted(int(name) for name in names if STEP.fullmatch(name))


def remove_all(folder: Path) -> None:
    """Remove the checkpoints of a run that needs them no more."""
    for step in steps(folder):
        _remove(folder / str(step))
    with contextlib.suppress(OSError):
        folder.rmdir()


def _remove(path: Path) -> None:
    """Remove what natpinn wrote, and nothing else that may have its name.

    What is left where a process dies meanwhile has a name that is no checkpoint's.
    """
    if is_kind(path, FOLDER) and is_kind(path / MARK, FILE):
        with contextlib.suppress(OSError):
            path = path.rename(path.with_name(f"{path.name}{TEMPORARY}-{secrets.token_hex(8)}"))
        shutil.rmtree(path, ignore_errors=True)


def put_away(path: Path) -> None:
    """Remove a damaged checkpoint; under another name it stays if it may be something else."""
    _remove(path)
    if path.exists():
        with contextlib.suppress(OSError):
            path.rename(path.with_name(f"damaged-{path.name}"))


class Checkpoints:
    """The last checkpoints of a run, written while training goes on. Errors are OSErrors."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._writer = Writer()
        self._newest: Path | None = None  # what is being written

    @property
    def is_writing(self) -> bool:
        return self._writer.is_writing

    def start(self, step: int, tree: PyTree) -> None:
        """Begin to write, after what is being written."""
        self.finish()
        if step not in steps(self.folder):
            self._newest = self.folder / str(step)
            self._writer.start(self._newest, tree)

    def finish(self) -> None:
        """Wait until all is written, and drop what is no longer needed."""
        newest, self._newest = self._newest, None
        try:
            self._writer.finish()
            if newest is not None:
                sync_tree(newest)
                sync_folder(self.folder)
                sync_folder(self.folder.parent)
        finally:
            if is_kind(self.folder, FOLDER):
                for path in self.folder.glob(f"*{TEMPORARY}*"):
                    if UNFINISHED.fullmatch(path.name) and is_kind(path, FOLDER):
                        shutil.rmtree(path, ignore_errors=True)
        for step in steps(self.folder)[:-KEPT]:
            _remove(self.folder / str(step))


class Writer:
    """One write at a time, in the background. Whatever goes wrong is an OSError."""

    def __init__(self) -> None:
        self._checkpointer: Any = None

    @property
    def is_writing(self) -> bool:
        return self._checkpointer is not None

    def start(self, path: Path, tree: PyTree) -> None:
        packed = {CONTENT: np.frombuffer(_pack(named_arrays(tree)), np.uint8)}
        self._checkpointer = _checkpointer()
        try:
            self._checkpointer.save(path.absolute(), packed, force=True)
        except Exception as error:
            raise _as_os_error(error) from error

    def finish(self) -> None:
        checkpointer, self._checkpointer = self._checkpointer, None
        if checkpointer is None:
            return
        try:
            checkpointer.wait_until_finished()
        except Exception as error:
            raise _as_os_error(error) from error
        finally:
            checkpointer.close()


def named_arrays(tree: PyTree) -> dict[str, np.ndarray]:
    """Copies of the leaves of a pytree, each under its path; typed keys as their data."""
    named = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(on_this_process(tree)):
        name = jax.tree_util.keystr(path, simple=True, separator=".").replace("/", "%2F")
        if name in named:
            raise InputError(f"two parameters have the name {name!r}: rename one of them")
        named[name] = np.array(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    return named


def _pack(arrays: dict[str, np.ndarray]) -> memoryview:
    """An npz archive. (`numpy.savez` takes names as keywords, and some are its own.)"""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return content.getbuffer()


def _read_arrays(path: Path, wanted: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a folder, whose names, shapes and types are checked before they are read."""
    if not is_kind(path, FOLDER):
        raise DamagedError(f"{path} does not exist")
    try:
        most = max(SMALL_BYTES, sum(2 * array.nbytes + HEADER for array in wanted.values()))
        _check_plain(path, most)
        with _checkpointer() as checkpointer:
            (stored,) = dict(checkpointer.metadata(path.absolute()).item_metadata).values()
            declared = max(map(_declared, (stored.shape, stored.storage.chunk_shape)))
            if declared > most:
                raise InputError(
                    f"{path} does not fit the model: {declared:,} bytes are stored, and the model "
                    f"and the optimizer have {most:,} at most; pass those that the run had"
                )
            like = {CONTENT: np.zeros(stored.shape, np.uint8)}
            content = checkpointer.restore(path.absolute(), like)[CONTENT]
        with zipfile.ZipFile(io.BytesIO(content.tobytes())) as archive:
            expected = {name: _kind_of(array) for name, array in wanted.items()}
            added = {name: wanted[name] for name in ADDED if name in wanted}
            names = {name.removesuffix(".npy"): name for name in archive.namelist()}
            found = {name: _kind_of(array) for name, array in added.items()}
            found |= {name: _kind(archive, file) for name, file in names.items()}
            _check_same(path, found, expected)
            # reading checks the checksums
            return added | {name: _array(archive, file) for name, file in names.items()}
    except InputError:
        raise
    except Exception as error:  # whatever the libraries make of bytes that are not theirs
        raise DamagedError(f"{path} is damaged: {_first_line(error)}") from error


def _check_plain(path: Path, most: int) -> None:
    """Check that there are files and folders alone, no links, and no more bytes than could fit."""
    size = 0
    for folder, inside, names in os.walk(path):
        others = [n for n in inside if not is_kind(Path(folder, n), FOLDER)]
        others += [n for n in names if not is_kind(Path(folder, n), FILE)]
        if others:
            raise DamagedError(f"{path} is damaged: {others[0]} is a link, or no file")
        size += sum(Path(folder, name).stat().st_size for name in names)
        if size > most:
            raise DamagedError(f"{path} is damaged: its files have {size:,} bytes")


def _declared(shape: Sequence[int] | None) -> int:
    """The bytes of an array of bytes of some shape."""
    return math.prod(max(0, int(n)) for n in shape or ())


def _kind(archive: zipfile.ZipFile, name: str) -> Kind:
    """The shape and the type of an array, of which only the first bytes are read."""
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"{name} has a header of version {version}")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    return shape, str(dtype)


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(name) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _check_same(path: Path, found: dict[str, Kind], expected: dict[str, Kind]) -> None:
    if found != expected:
        differing = min(name for name, _ in found.items() ^ expected.items())
        what = "optimizer" if ".optimizer." in differing else "model"
        raise InputError(
            f"{path} does not fit the {what}: {differing!r} is stored with shape and type "
            f"{found.get(differing)}, the {what} has {expected.get(differing)}; pass the {what} "
            f"that the run had"
        )


def _kind_of(array: np.ndarray) -> Kind:
    return array.shape, str(array.dtype)


def _checkpointer() -> Any:
    """An Orbax checkpointer of this process alone, also where there are others."""
    import orbax.checkpoint as ocp

    logging.getLogger("absl").setLevel(logging.CRITICAL)  # errors are raised, and told by natpinn
    this = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=this,
        active_processes={this} if jax.process_count() > 1 else None,
        barrier_sync_key_prefix=f"natpinn-{this}" if jax.process_count() > 1 else None,
    )
    return ocp.StandardCheckpointer(multiprocessing_options=alone)


def _like(leaf: object, array: np.ndarray) -> jax.Array | np.ndarray:
    if isinstance(leaf, jax.Array):
        return jax.random.wrap_key_data(jnp.asarray(array)) if _is_key(leaf) else jnp.asarray(array)
    return array


def _is_key(leaf: object) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _as_os_error(error: Exception) -> OSError:
    if isinstance(error, OSError) and error.strerror:
        return error
    reason = "No space left on device" if "No space left" in str(error) else _first_line(error)
    return OSError(0, reason)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0]
