"""The one writer of run folders."""

import contextlib
import errno
import fcntl
import os
import shlex
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from jaxtyping import PyTree

from ..errors import InputError, NatpinnWarning
from ..files import (
    FILE,
    FOLDER,
    PARTIAL,
    as_json,
    check_kind,
    is_kind,
    make_folder,
    open_in_place,
    replace_text,
    save_figure,
    sync_file,
    sync_folder,
    sync_tree,
)
from .checkpoint import Checkpoint, Checkpoints
from .checkpoint import write as write_arrays
from .records import BEST, CHECKPOINT, CONFIG, METRICS, PICTURE, SUMMARY, read_summary


@dataclass(frozen=True)
class Results:
    """What a run folder holds beside its settings and metrics."""

    summary: Mapping[str, Any]
    parameters: PyTree  # the best ones, and the constants of the model
    checkpoint: Checkpoint | None
    draw: Callable[[], Any] | None  # makes the picture

    def write(self, path: Path) -> None:
        """Write the results; the summary marks a folder as complete, only the picture follows."""
        if self.checkpoint is not None:
            checkpoints = Checkpoints(path / CHECKPOINT)
            checkpoints.start(int(self.checkpoint.snapshot.state.step), self.checkpoint)
            checkpoints.finish()
        write_arrays(path / BEST, self.parameters)
        sync_tree(path / BEST)
        sync_folder(path)
        replace_text(path / SUMMARY, as_json(self.summary, indent=2))
        if self.draw is not None:
            try:
                save_figure(self.draw(), path / PICTURE)
            except Exception as error:  # a picture is no reason to fail a run
                reason = str(error).split("\n")[0]
                warnings.warn(f"no picture was drawn: {reason}", NatpinnWarning, stacklevel=2)


class RunFolder:
    """Writes one run as it happens, and locks its folder until it is closed.

    Where writing fails, as on a full disk, the records wait in memory, and training goes on.
    """

    def __init__(self, path: Path, is_new: bool = True):
        self.path = path
        self._paused: set[str] = set()
        self._checkpoints = Checkpoints(path / CHECKPOINT)
        try:
            if is_new:
                make_folder(path)
            self._lock = _lock(path)
        except OSError as error:
            verb = "write to" if is_new else "read"
            raise InputError(f"cannot {verb} {path}: {error.strerror}") from error
        with self._closed_on_error():
            if is_new:
                check_free(path, is_mine=True)
            else:
                _check_kinds(path)

    def begin(self, config: dict[str, Any], history: Sequence[Mapping[str, float]] = ()) -> None:
        """Write the settings, and the records of a run that goes on."""
        self._config = config
        self._lines = [as_json(record) for record in history]
        with self._closed_on_error():
            try:
                _remove_partial(self.path)
                self._write_texts(self.path)
                (self.path / SUMMARY).unlink(missing_ok=True)
                sync_folder(self.path)
            except OSError as error:
                raise InputError(f"cannot write to {self.path}: {error.strerror}") from error

    def append(self, record: Mapping[str, float]) -> None:
        """One evaluation."""
        self._lines.append(as_json(record))
        self._attempt("metrics", self._write_lines)

    def checkpoint(self, step: int, checkpoint: Checkpoint) -> None:
        """Write a checkpoint in the background; errors are noticed at the next call."""
        was_writing = self._checkpoints.is_writing
        self._attempt("metrics", lambda: sync_file(self.path / METRICS), is_proof=False)
        self._attempt("checkpoints", self._checkpoints.finish, is_proof=was_writing)
        self._attempt(
            "checkpoints", lambda: self._checkpoints.start(step, checkpoint), is_proof=False
        )

    def finish(self, results: Results) -> Path | None:
        """Write all that is left, into another folder if this one cannot be written to any more.

        Returns the folder, or None if there is no room anywhere and the result is in memory only.
        """
        self._attempt("checkpoints", self._checkpoints.finish, is_proof=False)
        try:
            self._secure()
            self._write_texts(self.path)
            results.write(self.path)
            return self.path
        except OSError as error:
            return self._rescue(error, results)
        finally:
            self.close()

    def _rescue(self, reason: OSError, results: Results) -> Path | None:
        failure = f"cannot write to {self.path}: {reason.strerror}"
        try:
            rescue = Path(tempfile.mkdtemp(prefix="natpinn-run-"))  # any name may be the reason
            self._write_texts(rescue)
            results.write(rescue)
        except OSError as error:
            where = tempfile.gettempdir()
            _warn(f"{failure}, nor to {where}: {error.strerror}; the result is in memory only")
            return None
        _warn(f"{failure}; the run is saved to {rescue}")
        return rescue

    def close(self) -> None:
        """Release the lock of the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _attempt(self, what: str, write: Callable[[], None], is_proof: bool = True) -> None:
        """Write something; if that fails, say so once and go on."""
        try:
            self._secure()
            write()
        except OSError as error:
            if what not in self._paused:
                _warn(
                    f"cannot write {what} to {self.path}: {error.strerror}; training goes on, and "
                    f"writing is tried again"
                )
            self._paused.add(what)
        else:
            if what in self._paused and is_proof:
                _warn(f"writing {what} to {self.path} works again")
                self._paused.discard(what)

    def _secure(self) -> None:
        """Check that the folder is still the one that was locked; create it again if it is gone."""
        assert self._lock is not None
        if self.path.exists():
            if not os.path.samestat(os.fstat(self._lock), os.stat(self.path)):
                raise OSError(errno.ESTALE, "it is no longer the folder that the run began in")
            return
        make_folder(self.path)
        os.close(self._lock)
        self._lock = _lock(self.path)
        self._write_texts(self.path)
        _warn(f"{self.path} was removed, and is written again")

    def _write_texts(self, path: Path) -> None:
        replace_text(path / CONFIG, tomli_w.dumps(self._config))
        replace_text(path / METRICS, "".join(self._lines))
        self._written, self._size = len(self._lines), (path / METRICS).stat().st_size

    def _write_lines(self) -> None:
        """Append the missing lines, over what a failed write may have left."""
        text = "".join(self._lines[self._written :]).encode()
        with open_in_place(self.path / METRICS) as metrics:
            metrics.seek(self._size)
            if metrics.write(text) != len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            metrics.truncate()
        self._written, self._size = len(self._lines), self._size + len(text)

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except InputError:
            self.close()
            raise


def _check_kinds(path: Path) -> None:
    """Check that what a run writes to is what a run has written, and no link to anything else."""
    for name in (CONFIG, METRICS, SUMMARY, PICTURE):
        check_kind(path / name, FILE)
    for name in (BEST, CHECKPOINT):
        check_kind(path / name, FOLDER)


def _remove_partial(path: Path) -> None:
    """Remove the files that were being written when a process died."""
    for partial in path.glob(f".natpinn-*{PARTIAL}"):
        if is_kind(partial, FILE):
            partial.unlink(missing_ok=True)


def check_free(path: Path, is_mine: bool = False) -> None:
    """Check that a run may be written to a folder: it does not exist yet, or is empty."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{str(path)!r} is not UTF-8: choose another folder") from error
    try:
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file: choose a folder that is not there yet")
        names = [p.name for p in path.iterdir()] if path.exists() else []
    except OSError as error:
        raise InputError(f"cannot use {path}: {error.strerror}") from error
    if all(name.endswith(PARTIAL) for name in names):
        return
    if CONFIG not in names:
        raise InputError(f"{path} holds other files: choose another folder with --out")
    if not is_mine and is_locked(path):
        raise InputError(f"{path} is in use by another process: choose another folder with --out")
    if SUMMARY in names and read_summary(path).get("status") in ("finished", "diverged"):
        raise InputError(f"{path} holds another run: choose another folder with --out")
    raise InputError(
        f"{path} holds an interrupted run: go on with `natpinn resume {shlex.quote(str(path))}`, "
        f"or choose another folder with --out"
    )


def is_locked(path: Path) -> bool:
    """Whether a process is writing to a run folder."""
    try:
        os.close(_lock(path))
    except (InputError, OSError):
        return True
    return False


def _lock(path: Path) -> int:
    """A descriptor that locks a folder, until it is closed or the process ends."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise InputError(f"{path} is in use by another process") from None
    except OSError:  # the file system has no locks
        _warn(f"{path} cannot be locked: see to it that no other process writes to it")
    return descriptor


def _warn(message: str) -> None:
    warnings.warn(message, NatpinnWarning, stacklevel=3)
