"""Where the trials of a study are kept: in memory, in a journal file, or in a database."""

import functools
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from ..errors import InputError
from ..files import is_own_file, read_bytes
from ..runs.records import DAMAGE, SHORT
from ..training.signals import say
from .journal import LARGEST, open_journal

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

ENVIRONMENT = "NATPINN_STORAGE"  # the variable of a user's own that names a database
ATTEMPTS = 5  # to create the tables of a database while other workers do
PATIENCE = 120.0  # seconds to wait for a database that others have locked
PAUSE = 0.2  # seconds before it is tried again
LOCKED = re.compile(r"database( table)? is locked|database is busy", re.IGNORECASE)
KEY = r"(?:password|passwd|pass|pwd|secret|token|odbc_connect)\s*(?:=|%3D)\s*"
VALUE = r"'([^']*)'|\"([^\"]*)\"|\{([^}]*)\}"  # in quotes, or ODBC's braces
HIDDEN = "***"
JOURNAL = "-journal"  # ends the name of what SQLite undoes where a process died
OF_SEVERAL = bytes.fromhex("d9d505f920a163d7")  # ends it where it names other files
CALLED_BY_CACHE = ("_create_new_trial", "_get_trials", "_set_trial_param")  # of Optuna's
Created = TypeVar("Created")


def import_optuna() -> ModuleType:
    try:
        import optuna
    except ImportError as error:
        raise InputError("tuning needs Optuna: pip install optuna") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def open_storage(where: str | Path | None) -> "BaseStorage":
    """The storage in memory (None), in a journal file (a path), or at a database's URL."""
    optuna = import_optuna()
    if where is None:
        return optuna.storages.InMemoryStorage()
    if isinstance(where, Path):
        return open_journal(where)
    _check_database(where)
    return optuna.storages.get_storage(_patient_kind(optuna)(where))


def create(make: Callable[[], Created], storage: str | Path | None) -> Created:
    """What `make` makes in a storage, tried again while workers that start create its tables."""
    began, attempt = time.monotonic(), 0
    while True:
        try:
            return make()
        except InputError:
            raise
        except Exception as error:
            attempt += 1
            is_waiting = is_locked(error) and time.monotonic() - began < PATIENCE
            if not is_waiting and (attempt >= ATTEMPTS or not _is_collision(error)):
                what = hide_password(str(error).strip().split("\n")[0], str(storage))
                where = hide_address(storage)
                raise InputError(f"cannot use the storage {where}: {what}") from error
        time.sleep(min(2.0, 0.3 * 2**attempt))


def is_locked(error: BaseException | None) -> bool:
    """Whether an error says that others have locked a database, which passes."""
    while error is not None:
        if LOCKED.search(str(error)):
            return True
        error = error.__cause__
    return False


def explained(use: Callable[..., Created]) -> Callable[..., Created]:
    """A function that uses a storage, which may be damaged: Optuna then raises whatever comes."""

    @functools.wraps(use)
    def call(*arguments: Any, **options: Any) -> Created:
        try:
            return use(*arguments, **options)
        except InputError:
            raise
        except (*DAMAGE, OSError) as error:
            what = hide_password(str(error)[:SHORT]) or type(error).__name__
            raise InputError(
                f"the trials of the study cannot be read or written: {what}"
            ) from error

    return call


def is_inside(storage: str, folder: Path) -> bool:
    """Whether a database is a file of a study's own folder, and no link leads out of it."""
    path = _file_of(storage)
    if path is None or path.parent.resolve() != folder.resolve():
        return False
    beside = [path.with_name(path.name + end) for end in ("", JOURNAL, "-wal", "-shm")]
    return all(is_own_file(name) for name in beside if os.path.lexists(name))


def _file_of(storage: str) -> Path | None:
    """The file of an SQLite database, where its address is a plain one."""
    found = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?#%]+)(?:\?[^?]*)?", storage)
    if found is None or "uri=" in storage or found[1].startswith(("file:", ":")):
        return None
    return Path(found[1])


def _check_database(storage: str) -> None:
    """Check that SQLite will not delete another file, as the end of a journal can make it do.

    Its journal names another file where one transaction changed several databases; natpinn's never
    do.
    """
    path = _file_of(storage)
    if path is None or not os.path.lexists(journal := path.with_name(path.name + JOURNAL)):
        return
    try:
        end = read_bytes(journal, most=LARGEST)[-len(OF_SEVERAL) :]
    except OSError as error:
        raise InputError(f"{journal} cannot be read: {error.strerror}") from error
    if end == OF_SEVERAL:
        raise InputError(f"{journal} is of several databases, and natpinn's are not: remove it")


def said_storage() -> str | None:
    """The database that the environment of this user names."""
    return os.environ.get(ENVIRONMENT) or None


def hide_address(storage: str | Path | None) -> str:
    """A storage as it may be shown: without a password."""
    return hide_password(storage, str(storage))


def hide_password(text: object, *addresses: str) -> str:
    """A message as it may be shown: without the passwords of the addresses in it.

    Passwords stand before the host's @, or in the options of an address; those of `addresses` are
    hidden wherever they are repeated.
    """
    shown = str(text)
    for secret in _secrets(*addresses):
        shown = shown.replace(secret, HIDDEN)
    return re.sub(r"\S+", lambda word: _without_password(word[0]), shown)


def _without_password(word: str) -> str:
    """A word of a message, which may be or hold an address."""
    scheme, mark, rest = word.partition("://")
    if not mark:
        return word
    before, at, host = rest.rpartition("@")
    user, colon, _ = before.partition(":")
    found = f"{scheme}://{user}:{HIDDEN}@{host}" if at and colon else word
    return re.sub(rf"(?i)({KEY})(?:{VALUE}|[^&;'\"]+)", rf"\g<1>{HIDDEN}", found)


def _secrets(*addresses: str) -> list[str]:
    """The passwords of addresses, longest first, as they are written and as they are meant."""
    found: set[str] = set()
    for address in addresses:
        before, _, _ = address.partition("://")[2].rpartition("@")
        found.add(before.partition(":")[2])
        for form in (address, unquote(address)):
            for match in re.finditer(rf"(?i)(?={KEY}(?:{VALUE}|([^&;]+)))", form):
                found.add(next(filter(None, match.groups()), ""))
    found |= {unquote(secret) for secret in found}
    return sorted((s for s in found if s.strip("*'\"")), key=len, reverse=True)


def _is_collision(error: Exception) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"IntegrityError", "ProgrammingError", "StorageInternalError"})


@functools.cache
def _patient_kind(optuna: ModuleType) -> type:
    """Optuna's database, each of whose transactions waits while others have locked it."""
    kind = optuna.storages.RDBStorage
    names = {*optuna.storages.BaseStorage.__abstractmethods__, *CALLED_BY_CACHE} & vars(kind).keys()
    return type("PatientStorage", (kind,), {name: _patient(getattr(kind, name)) for name in names})


def _patient(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that is one transaction, tried again while others have locked the database."""

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        began, has_said = time.monotonic(), False
        while True:
            try:
                return method(*arguments, **options)
            except Exception as error:
                if not is_locked(error):
                    raise
                if time.monotonic() - began > PATIENCE:
                    raise InputError(
                        f"the database of the study has been locked for {PATIENCE:.0f} s: find out "
                        f"by what, and go on with the same command"
                    ) from error
            if not has_said:
                has_said = True
                say("the database of the study is locked: waiting")
            time.sleep(PAUSE)

    return call
