"""The journal of a study: a file to which workers append, one at a time."""

import errno
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from ..files import FILE, check_kind, is_own_file, open_in_place

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

LARGEST, LONGEST = 2**30, 2**20  # bytes of a journal, and of one of its lines
WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # of a file system
LOCK = ".flock"  # ends the name of the file that is locked


def open_journal(path: Path) -> "BaseStorage":
    """Optuna's storage in a file; InputError where something else has its name."""
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage

    class Lock(JournalFileOpenLock):
        """Held by one process, until it releases the lock or ends in whatever way."""

        def acquire(self) -> bool:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(path.with_name(path.name + LOCK), flags, 0o666)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX)
                _cut_torn_line(path)
            except BaseException as error:
                os.close(self._descriptor)
                self._descriptor = None
                if isinstance(error, OSError) and error.errno in WITHOUT_LOCKS:
                    return super().acquire()
                raise
            return True

        def release(self) -> None:
            if self._descriptor is None:
                super().release()
            else:
                os.close(self._descriptor)

    path = path.parent.resolve() / path.name  # as it is called from any working folder
    check_kind(path, FILE)
    check_kind(path.with_name(path.name + LOCK), FILE)
    if path.exists() and not is_own_file(path):
        raise InputError(f"{path} has other names too: copy it, and remove it")
    if path.exists() and path.stat().st_size > LARGEST:
        raise InputError(f"{path} has {path.stat().st_size:,} bytes: it is no journal of a search")
    return JournalStorage(JournalFileBackend(str(path), lock_obj=Lock(str(path))))


def _cut_torn_line(path: Path) -> None:
    """Remove what a worker has left that died, or had no room, while it wrote a line."""
    with open_in_place(path) as journal:
        size = journal.seek(0, os.SEEK_END)
        end = max(0, size - LONGEST)
        journal.seek(end)
        left = journal.read(LONGEST)
        if end and b"\n" not in left:
            raise OSError(errno.EINVAL, "it is no journal of a search")
        if not left.endswith(b"\n"):
            journal.truncate(end + left.rfind(b"\n") + 1)
