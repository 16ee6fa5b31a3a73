"""Files that have their old or their new content, whatever happens, and no others.

A folder may come from anyone. So only regular files are read, up to a size, and only regular files
are replaced; no link is followed, except in the path of the folder.
"""

import contextlib
import errno
import io
import json
import math
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import InputError

PARTIAL = ".part"  # ends the name of a file that is being written, or was when a process died
LONGEST = 2**26  # bytes of a text that is read
OPEN = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")  # pipes of a shell, as <(command) names them
Kind = tuple[str, Any]  # what something on disk is called, and the test of its mode
FILE: Kind = ("file", stat.S_ISREG)
FOLDER: Kind = ("folder", stat.S_ISDIR)


def read_bytes(path: Path, most: int = LONGEST) -> bytes:
    """What a regular file holds; an OSError for anything else, and for more than `most` bytes."""
    with _opened(path, os.O_RDONLY) as descriptor, open(descriptor, "rb", closefd=False) as file:
        size = os.fstat(descriptor).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes")
        return file.read(most)


def read_text(path: Path) -> str:
    """What a regular file holds, as text."""
    return read_bytes(path).decode()


def read_named(path: Path | str) -> str:
    """What a file holds that the user has named: a link to one will do, or an open pipe."""
    if str(path).startswith(OPEN):
        with open(path, "rb") as pipe:
            return pipe.read(LONGEST).decode()
    return read_text(Path(os.path.realpath(path)))


def replace_text(path: Path, text: str) -> None:
    """Write a file beside the old one, and put it in its place."""
    replace_bytes(path, text.encode())


def replace_bytes(path: Path, content: bytes) -> None:
    """Write a file beside the old one, and put it in its place once it is on the disk.

    Who may read it stays as it was. What is there and no regular file stays, and is an OSError.
    """
    mode = None
    if os.path.lexists(path):
        mode = stat.S_IMODE(os.lstat(path).st_mode)
        if not is_kind(path, FILE):
            raise OSError(errno.EEXIST, f"{path.name} is {_called(path)}")
    with _partial(path.parent, content, mode) as partial:
        os.replace(partial, path)
    sync_folder(path.parent)


def create_text(path: Path, text: str, is_private: bool = False) -> None:
    """Write a file that is not there yet, whole or not at all; else a FileExistsError.

    Nobody but the user may read it where it is private.
    """
    with _partial(path.parent, text.encode(), 0o600 if is_private else None) as partial:
        os.link(partial, path)
    sync_folder(path.parent)


@contextlib.contextmanager
def _partial(folder: Path, content: bytes, mode: int | None) -> Iterator[Path]:
    """A file of a random name, which is on the disk; what is left of it is removed."""
    partial = folder / f".natpinn-{secrets.token_hex(8)}{PARTIAL}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(partial, flags, 0o666 if mode is None else 0o600)
    try:
        with open(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        yield partial
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def open_in_place(path: Path) -> io.FileIO:
    """A regular file to write into, unbuffered."""
    with _opened(path, os.O_RDWR) as descriptor:
        return io.FileIO(os.dup(descriptor), "r+")


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """The descriptor of a regular file; no link is followed, and no pipe waited for."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, f"it is {_called(path)}")
        yield descriptor
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder, and those that it is in, so that they are on the disk."""
    if path.exists() or path.parent == path:
        path.mkdir(exist_ok=True)  # raises where it is a file
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Wait until what was written to a file is on the disk."""
    with open_in_place(path) as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk, where its file system knows of that."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Wait until all files below a folder are on the disk, and their names."""
    for folder, _, names in os.walk(path):
        for name in names:
            sync_file(Path(folder, name))
        sync_folder(Path(folder))


def is_kind(path: Path, kind: Kind) -> bool:
    """Whether something is there, and is a file or a folder itself, and no link to one."""
    try:
        return kind[1](os.lstat(path).st_mode)
    except OSError:
        return False


def is_own_file(path: Path) -> bool:
    """Whether a file is there under this name alone: no link, and none of several names."""
    return is_kind(path, FILE) and os.lstat(path).st_nlink == 1


def check_kind(path: Path, kind: Kind) -> None:
    """An InputError where something is there that is of another kind, such as a link."""
    if os.path.lexists(path) and not is_kind(path, kind):
        raise InputError(f"{path} is {_called(path)}, and has to be a {kind[0]} itself: remove it")


def check_output(path: Path | str) -> Path:
    """A file that may be written: it is new, or a regular file. An InputError for anything else."""
    if not str(path):
        raise InputError("the name of an output is empty: name a file")
    if os.path.lexists(path) and not is_kind(Path(path), FILE):
        raise InputError(f"{path} is {_called(Path(path))}: choose a file that is new")
    return Path(path)


def save_figure(figure: Any, path: Path | str, **options: Any) -> None:
    """Save a Matplotlib figure; a name without an ending gets .png. An InputError if that fails."""
    path = check_output(path)
    path = path if path.suffix else check_output(path.with_name(path.name + ".png"))
    content = io.BytesIO()
    try:
        figure.savefig(content, format=path.suffix[1:].lower(), **options)
        replace_bytes(path, content.getvalue())
    except (ValueError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot draw {path}: {reason}") from error


def as_json(value: object, indent: int | None = None) -> str:
    """One JSON text with a line end; NaN and infinity, which JSON has not, become null."""
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False) + "\n"


def _called(path: Path) -> str:
    names = {
        stat.S_IFLNK: "a link",
        stat.S_IFDIR: "a folder",
        stat.S_IFREG: "a file",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
    }
    return names.get(stat.S_IFMT(os.lstat(path).st_mode), "a device")


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
