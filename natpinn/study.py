"""One search shared by any number of workers: which trials there are, and who runs which.

Trials are kept by Optuna, in a journal file or a database. A trial belongs to the worker that asked
for it and says from time to time that it is alive; those of a worker that is gone are taken over.
"""

import math
import os
import socket
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .errors import InputError, unknown
from .spaces import Choice, Range, Space, describe

SAMPLERS = ("random", "tpe")
SILENCE = 600.0  # seconds without a sign of life, after which a worker is taken for dead
SIGN_EVERY = 20.0  # seconds between signs of life
WARM_UP = 20  # percent of a trial before it may be cut short
NAME = "natpinn"
ATTEMPTS = 5
COLLISIONS = ("IntegrityError", "ProgrammingError", "DuplicatedStudyError", "StorageInternalError")


@dataclass(frozen=True)
class Search:
    """What is looked for and where: all that the workers of a study agree on."""

    settings: dict[str, Any]  # of every trial, with dotted keys
    space: Space
    trials: int = 50  # over the whole space
    refine: int = 50  # more, around the best of those
    sampler: str = "random"
    prune: bool = False
    seed: int = 0

    def __post_init__(self):
        if self.sampler not in SAMPLERS:
            raise unknown("sampler", self.sampler, SAMPLERS)
        for name, least in (("trials", 1), ("refine", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"{name} must be a whole number from {least}, got {value!r}")
        if not self.space:
            raise InputError("a search needs at least one setting to look for")

    @property
    def total(self) -> int:
        return self.trials + self.refine

    def describe(self) -> dict[str, Any]:
        """For a TOML file and for comparison."""
        return {**asdict(self), "space": describe(self.space)}


@dataclass(frozen=True)
class Trial:
    """Settings that are tried, and how that went."""

    number: int
    params: dict[str, Any]
    state: str  # finished, pruned, running, waiting, or failed
    error: float  # infinite if it diverged, NaN before its end
    continues: int | None = None  # the trial of a worker that died


STATES = {
    "COMPLETE": "finished",
    "PRUNED": "pruned",
    "RUNNING": "running",
    "WAITING": "waiting",
    "FAIL": "failed",
}


@dataclass
class Study:
    """The trials of a search."""

    search: Search
    _optuna: Any = field(repr=False)

    @classmethod
    def open(cls, search: Search, storage: str | Path | None, name: str = NAME) -> "Study":
        """A new study, or one that is there; in memory, in a journal file, or at a database URL."""
        optuna = import_optuna()
        sampler = _sampler(optuna, search)
        pruner = optuna.pruners.NopPruner()
        if search.prune:
            pruner = optuna.pruners.MedianPruner(n_warmup_steps=WARM_UP)

        def create() -> Any:
            return optuna.create_study(
                storage=_storage(optuna, storage),
                sampler=sampler,
                pruner=pruner,
                study_name=name,
                load_if_exists=True,
            )

        return cls(search, _patiently(create, storage))

    def trials(self) -> list[Trial]:
        return [
            Trial(t.number, t.params or _fixed(t), STATES[t.state.name], _error(t), _continued(t))
            for t in self._optuna.get_trials(deepcopy=False)
        ]

    @property
    def finished(self) -> list[Trial]:
        """Those that were run to their end, or as far as was worth it."""
        return [t for t in self.trials() if t.state in ("finished", "pruned")]

    @property
    def best(self) -> Trial | None:
        """The finished trial with the smallest error."""
        whole = [t for t in self.trials() if t.state == "finished"]
        return min(whole, key=lambda t: t.error, default=None)

    def take(self) -> "Task | None":
        """The next trial for this worker; None if there is nothing left to begin."""
        self._revive()
        is_waiting = any(t.state == "waiting" for t in self.trials())
        if not is_waiting and self._count() >= self.search.total:
            return None
        trial = self._optuna.ask()
        rank = self._count(before=trial.number)
        if rank >= self.search.total:  # another worker was faster
            self._optuna.tell(trial, state=import_optuna().trial.TrialState.FAIL)
            return None
        trial.set_user_attr("worker", worker())
        trial.set_user_attr("seen", time.time())
        space = self.search.space
        if rank >= self.search.trials and self.search.sampler == "random" and self.best:
            best = self.best.params
            space = {key: values.narrowed(best[key]) for key, values in space.items()}
        params = {key: _suggest(trial, key, values) for key, values in space.items()}
        continues = _continued(trial)
        return Task(self._optuna, trial, params, continues)

    def _count(self, before: float = math.inf) -> int:
        """How many trials there are that have not failed."""
        return sum(t.number < before and t.state != "failed" for t in self.trials())

    def _revive(self) -> None:
        """Trials of workers that are gone wait again, with the same settings."""
        failed = import_optuna().trial.TrialState.FAIL
        for trial in self._optuna.get_trials(deepcopy=False):
            if trial.state.name != "RUNNING" or not _is_abandoned(trial):
                continue
            try:
                self._optuna.tell(trial.number, state=failed)
            except (ValueError, RuntimeError):
                continue  # another worker has just done so
            if trial.params:
                self._optuna.enqueue_trial(trial.params, {"continues": trial.number})


@dataclass
class Task:
    """A trial that this worker runs."""

    _optuna: Any = field(repr=False)
    _trial: Any = field(repr=False)
    params: dict[str, Any]
    continues: int | None
    _last_sign: float = 0.0
    _reported: int = 0

    @property
    def number(self) -> int:
        return self._trial.number

    def watch(self, share: float, error: float) -> bool:
        """Say how far a trial is, and hear whether it is worth going on."""
        if time.monotonic() - self._last_sign > SIGN_EVERY:
            self._last_sign = time.monotonic()
            self._trial.set_user_attr("seen", time.time())
        percent = int(100 * share)
        if percent <= self._reported or not math.isfinite(error):
            return False
        self._reported = percent
        self._trial.report(error, percent)
        return self._trial.should_prune()

    def finish(self, error: float, was_pruned: bool = False) -> None:
        state = import_optuna().trial.TrialState
        if was_pruned:
            self._optuna.tell(self._trial, state=state.PRUNED)
        else:
            self._optuna.tell(self._trial, error if error == error else math.inf)

    def fail(self) -> None:
        self._optuna.tell(self._trial, state=import_optuna().trial.TrialState.FAIL)


def _patiently(create: Callable[[], Any], storage: Any) -> Any:
    """Make a study; workers that start at once all try to make the tables of a database."""
    for attempt in range(ATTEMPTS):
        try:
            return create()
        except Exception as error:
            if type(error).__name__ not in COLLISIONS or attempt == ATTEMPTS - 1:
                what = str(error).strip().split("\n")[0]
                raise InputError(f"cannot use the storage {storage}: {what}") from error
            time.sleep(0.3 * 2**attempt)
    raise AssertionError


def worker() -> str:
    """Who this process is, on which machine."""
    return f"{_machine()}:{os.getpid()}"


def import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise InputError("tuning needs Optuna: pip install 'natpinn[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _is_abandoned(trial: Any) -> bool:
    owner = trial.user_attrs.get("worker")
    if owner is None:
        return time.time() - trial.datetime_start.timestamp() > SILENCE
    machine, _, process = owner.rpartition(":")
    if machine == _machine():
        return not _is_alive(int(process))
    return time.time() - trial.user_attrs.get("seen", 0.0) > SILENCE


def _machine() -> str:
    """This machine, or the container in it that has process numbers of its own."""
    try:
        return f"{socket.gethostname()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _error(trial: Any) -> float:
    return math.nan if trial.value is None else trial.value


def _continued(trial: Any) -> int | None:
    return trial.user_attrs.get("continues")


def _fixed(trial: Any) -> dict[str, Any]:
    """The settings of a trial that waits."""
    return dict(trial.system_attrs.get("fixed_params", {}))


def _suggest(trial: Any, key: str, values: Range | Choice) -> Any:
    if isinstance(values, Choice):
        return trial.suggest_categorical(key, values.options)
    return trial.suggest_float(key, values.low, values.high, log=values.is_log)


def _storage(optuna: Any, where: str | Path | None) -> Any:
    if where is None:
        return optuna.storages.InMemoryStorage()
    if isinstance(where, Path):
        backend = optuna.storages.journal.JournalFileBackend(str(where))
        return optuna.storages.JournalStorage(backend)
    return where


def _sampler(optuna: Any, search: Search) -> Any:
    """Trial n gets the same settings however many workers there are; TPE learns as it goes."""
    if search.sampler == "tpe":
        return optuna.samplers.TPESampler(constant_liar=True)

    class Seeded(optuna.samplers.BaseSampler):
        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return {}

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
            return {}

        def sample_independent(
            self, study: Any, trial: Any, param_name: str, param_distribution: Any
        ) -> Any:
            words = [search.seed, trial.number, zlib.crc32(param_name.encode())]
            random = np.random.default_rng(words)
            if hasattr(param_distribution, "choices"):
                return Choice(tuple(param_distribution.choices)).draw(random)
            ends = param_distribution.low, param_distribution.high
            return Range(*ends, is_log=param_distribution.log).draw(random)

    return Seeded()
