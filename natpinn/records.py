"""The run folder: config, metrics, summary, parameters. A contract, since other tools read it."""

import contextlib
import errno
import fcntl
import json
import math
import os
import shlex
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import tomli_w

from .checkpoint import Checkpoints
from .errors import InputError, NatpinnWarning

CONFIG, METRICS, SUMMARY = "config.toml", "metrics.jsonl", "summary.json"
BEST, CHECKPOINT, PICTURE = "best", "checkpoint", "solution.png"
PARTIAL = ".part"  # a file that is being written, or was when a process died


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
                path.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(path)
        except OSError as error:
            verb = "write to" if is_new else "read"
            raise InputError(f"cannot {verb} {path}: {error.strerror}") from error
        if is_new:
            with self._closed_on_error():
                check_free(path, is_mine=True)

    def begin(self, config: dict[str, Any], history: Sequence[dict[str, float]] = ()) -> None:
        """Write the settings, and the records of a run that goes on."""
        self._config = config
        self._lines = [_line(record) for record in history]
        with self._closed_on_error():
            try:
                self._write_texts(self.path)
                (self.path / SUMMARY).unlink(missing_ok=True)
            except OSError as error:
                raise InputError(f"cannot write to {self.path}: {error.strerror}") from error

    def append(self, record: dict[str, float]) -> None:
        """One evaluation."""
        self._lines.append(_line(record))
        self._attempt("metrics", self._write_lines)

    def checkpoint(self, step: int, tree: Any) -> None:
        """Write a checkpoint in the background; whether that works is known the next time."""
        was_writing = self._checkpoints.is_writing
        self._attempt("checkpoints", self._checkpoints.finish, is_proof=was_writing)
        self._attempt("checkpoints", lambda: self._checkpoints.start(step, tree), is_proof=False)

    def finish(self, write_results: Callable[[Path], None]) -> Path | None:
        """Write all that is left, into another folder if this one has become useless.

        None: there is no room anywhere, and the result is in memory only.
        """
        self._attempt("checkpoints", self._checkpoints.finish, is_proof=False)
        try:
            self._secure()
            self._write_texts(self.path)
            write_results(self.path)
            return self.path
        except OSError as error:
            return self._rescue(error, write_results)
        finally:
            self.close()

    def _rescue(self, reason: OSError, write_results: Callable[[Path], None]) -> Path | None:
        failure = f"cannot write to {self.path}: {reason.strerror}"
        try:
            rescue = Path(tempfile.mkdtemp(prefix=f"{self.path.name}-"))
            self._write_texts(rescue)
            write_results(rescue)
        except OSError as error:
            where = tempfile.gettempdir()
            _warn(f"{failure}, nor to {where}: {error.strerror}; the result is in memory only")
            return None
        _warn(f"{failure}; the run is saved to {rescue}")
        return rescue

    def close(self) -> None:
        """Let others use the folder."""
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
        """The folder is still the one that was locked; one that is gone is made again."""
        assert self._lock is not None
        if self.path.exists():
            if not os.path.samestat(os.fstat(self._lock), os.stat(self.path)):
                raise OSError(errno.ESTALE, "it is no longer the folder that the run began in")
            return
        self.path.mkdir(parents=True)
        os.close(self._lock)
        self._lock = _lock(self.path)
        self._write_texts(self.path)
        _warn(f"{self.path} was removed, and is written again")

    def _write_texts(self, path: Path) -> None:
        replace_text(path / CONFIG, tomli_w.dumps(self._config))
        replace_text(path / METRICS, "".join(self._lines))
        self._written, self._size = len(self._lines), (path / METRICS).stat().st_size

    def _write_lines(self) -> None:
        """Add the lines that are missing, over what a write that failed may have left."""
        text = "".join(self._lines[self._written :]).encode()
        with (self.path / METRICS).open("r+b", buffering=0) as metrics:
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


def check_free(path: Path, is_mine: bool = False) -> None:
    """A folder that a run may be written to: not there yet, or empty."""
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


def command(config: Path | str, settings: Mapping[str, Any]) -> str:
    """What runs a configuration; no file runs code of a user's own, so that is named."""
    problem, model = (str(settings.get(f"{part}.name")) for part in ("problem", "model"))
    words = ["natpinn", "solve", *([problem] if ":" in problem else []), "--config", str(config)]
    return shlex.join([*words, *(["--set", f"model.name={model}"] if ":" in model else [])])


def read_config(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_read(path / CONFIG))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path / CONFIG} is not valid TOML: {error}") from error


def read_history(path: Path) -> list[dict[str, float]]:
    """The records of a run; a last line that was not written to its end does not count."""
    records = []
    lines = _read(path / METRICS).splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            assert line.endswith("\n")
            assert isinstance(record["step"], int)
        except (ValueError, AssertionError, KeyError, TypeError) as error:
            if number == len(lines) and not line.endswith("\n"):
                break
            raise InputError(f"line {number} of {path / METRICS} cannot be read") from error
        records.append({k: math.nan if v is None else v for k, v in record.items()})
    return records


def read_summary(path: Path) -> dict[str, Any]:
    try:
        summary = json.loads(_read(path / SUMMARY))
        assert isinstance(summary, dict)
    except (ValueError, AssertionError) as error:
        raise InputError(f"{path / SUMMARY} cannot be read: {error}") from error
    return summary


def write_summary(path: Path, summary: dict[str, Any]) -> None:
    replace_text(path / SUMMARY, summary_text(summary))


def summary_text(summary: dict[str, Any]) -> str:
    return json.dumps(_finite(summary), indent=2, ensure_ascii=False) + "\n"


def replace_text(path: Path, text: str) -> None:
    """A file that has its old or its new text, whatever happens."""
    partial = path.with_name(path.name + PARTIAL)
    partial.write_text(text)
    os.replace(partial, path)


def machine() -> dict[str, Any]:
    """Where a run took place: device, versions and peak memory so far."""
    from importlib.metadata import version

    from . import __version__

    device = jax.local_devices()[0]
    packages = ("jax", "equinox", "optax", "folx", "numpy")
    return {
        "device": f"{device.device_kind} ({device.platform})",
        "versions": {
            "natpinn": __version__,
            "python": sys.version.split()[0],
            **{name: version(name) for name in packages},
        },
        "peak_memory_bytes": _peak_memory(device),
    }


def _peak_memory(device: Any) -> int:
    """The most memory that the device, or on a CPU the process, has used."""
    stats = device.memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return int(stats["peak_bytes_in_use"])
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _lock(path: Path) -> int:
    """A descriptor that locks a folder, until it is closed or the process ends."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise InputError(f"{path} is in use by another process") from None
    except OSError:  # the file system has no locks
        _warn(f"{path} cannot be locked: see to it that no other process writes to it")
    return descriptor


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text: {error.reason}") from error
    except OSError as error:
        raise InputError(
            f"{path.parent} is not a run folder: {path.name} cannot be read"
        ) from error


def _line(record: dict[str, float]) -> str:
    return json.dumps(_finite(record)) + "\n"


def _warn(message: str) -> None:
    warnings.warn(message, NatpinnWarning, stacklevel=3)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: both become null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
