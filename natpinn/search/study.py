"""One search shared by any number of workers: which trials there are, and who runs which.

Trials are kept by Optuna, in a journal file or a database. A trial belongs to the worker that asked
for it and says from time to time that it is alive. When a worker is gone, its trial is lost, and
another trial with the same settings continues it.
"""

import json
import math
import time
import warnings
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checks import check_flag, shown, whole
from ..errors import InputError, NatpinnWarning, unknown
from . import worker
from .spaces import Choice, Option, Range, Space, describe
from .storage import create, explained, hide_address, hide_password, import_optuna, open_storage

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution, CategoricalChoiceType
    from optuna.samplers import BaseSampler
    from optuna.study import Study as OptunaStudy
    from optuna.trial import FrozenTrial, TrialState
    from optuna.trial import Trial as OptunaTrial

SAMPLERS = ("random", "tpe")
SILENCE = 600.0  # seconds without a sign of life, after which a worker elsewhere is taken for dead
SIGN_EVERY = 20.0  # seconds between signs of life
WARM_UP = 20  # percent of a trial before it may be cut short
PRUNE_EVERY = 5  # percent
STATES = {
    "COMPLETE": "finished",
    "PRUNED": "pruned",
    "RUNNING": "running",
    "WAITING": "waiting",
    "FAIL": "lost",
}


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
        if not isinstance(self.settings, dict):
            raise InputError(f"settings must be a table, got {shown(self.settings)}")
        check_flag(self.prune, "prune")
        if self.sampler not in SAMPLERS:
            raise unknown("sampler", self.sampler, SAMPLERS)
        for name, least in (("trials", 1), ("refine", 0), ("seed", 0)):
            object.__setattr__(self, name, whole(getattr(self, name), name, least))
        if not self.space:
            raise InputError("a search needs at least one setting to look for")

    @property
    def total(self) -> int:
        return self.trials + self.refine

    def describe(self) -> dict[str, Any]:
        """The search as lists and numbers, without tuples, for a TOML file and for comparison."""
        return json.loads(json.dumps({**asdict(self), "space": describe(self.space)}))


@dataclass(frozen=True)
class Trial:
    """Settings that are tried, and how that went."""

    number: int
    params: dict[str, Any]
    state: str  # finished, pruned, running, waiting, lost (with its worker), or surplus
    error: float  # infinite if it failed, NaN before its end
    reason: str = ""  # why it failed
    continues: int | None = None  # the lost trial that has the same settings


@dataclass
class Study:
    """The trials of a search."""

    search: Search
    _optuna: "OptunaStudy" = field(repr=False)

    @classmethod
    @explained
    def open(cls, search: Search, storage: str | Path | None, name: str | None = None) -> "Study":
        """A new study, or one that is there; in memory, in a journal file, or at a database URL."""
        optuna = import_optuna()
        described = json.dumps(search.describe(), sort_keys=True)
        pruner = optuna.pruners.NopPruner()
        if search.prune:
            pruner = optuna.pruners.MedianPruner(n_warmup_steps=WARM_UP)

        def make() -> "OptunaStudy":
            return optuna.create_study(
                storage=open_storage(storage),
                sampler=_sampler(optuna, search),
                pruner=pruner,
                study_name=name or f"natpinn-{zlib.crc32(described.encode()):08x}",
                load_if_exists=True,
            )

        study = create(make, storage)
        if study.user_attrs.setdefault("search", described) != described:
            raise InputError(
                f"{hide_address(storage)} has a study {study.study_name!r} with another search: "
                f"choose a folder of another name with --out"
            )
        study.set_user_attr("search", described)
        return cls(search, study)

    @explained
    def trials(self) -> list[Trial]:
        return [_trial(t) for t in self._optuna.get_trials(deepcopy=False)]

    @property
    def finished(self) -> list[Trial]:
        """The trials that were run to their end, or were pruned."""
        return [t for t in self.trials() if t.state in ("finished", "pruned")]

    @property
    def best(self) -> Trial | None:
        """The finished trial with the smallest error."""
        sound = [t for t in self.trials() if t.state == "finished" and math.isfinite(t.error)]
        return min(sound, key=lambda t: t.error, default=None)

    @explained
    def take(self) -> "Task | None":
        """The next trial for this worker; None if there is nothing left to begin."""
        while True:
            self._give_up_abandoned()
            self._requeue_lost()
            trials = self.trials()
            is_waiting = any(t.state == "waiting" for t in trials)
            if not is_waiting and len(_roots(trials)) >= self.search.total:
                return None
            asked = self._optuna.ask()
            asked.set_user_attr("worker", worker.name())
            asked.set_user_attr("seen", time.time())
            place = self._place(asked.number)
            if place is not None:
                return Task(self._optuna, asked, self._draw(asked, place), _continues(asked))
            asked.set_user_attr("surplus", True)  # another worker was faster
            self._optuna.tell(asked, state=_state("FAIL"))

    def _place(self, number: int) -> int | None:
        """The number of a trial within the search, from 0; None if the search has enough."""
        trials = self.trials()
        me = trials[number]
        if any(t.continues == me.continues is not None for t in trials[:number]):
            return None  # somebody else continues the same trial
        place = sorted(_roots(trials)).index(_root(me, trials))
        return place if place < self.search.total else None

    def _draw(self, asked: "OptunaTrial", place: int) -> "dict[str, CategoricalChoiceType]":
        space, best = self.search.space, self.best
        is_refined = place >= self.search.trials and self.search.sampler == "random"
        if is_refined and best is not None and _continues(asked) is None:
            space = {key: values.narrowed(best.params[key]) for key, values in space.items()}
        return {key: _suggest(asked, key, values) for key, values in space.items()}

    def _give_up_abandoned(self) -> None:
        """Mark the trials of workers that are gone as lost."""
        for trial in self._optuna.get_trials(deepcopy=False):
            if trial.state.name == "RUNNING" and _is_abandoned(trial):
                _quietly(
                    self._optuna.tell,
                    trial.number,
                    state=_state("FAIL"),
                )

    def _requeue_lost(self) -> None:
        """Enqueue lost trials again with the same settings, unless that has been done."""
        trials = self.trials()
        continued = {t.continues for t in trials}
        for trial in trials:
            if trial.state == "lost" and trial.params and trial.number not in continued:
                self._optuna.enqueue_trial(trial.params, {"continues": trial.number})


@dataclass
class Task:
    """A trial that this worker runs. Others may have taken it over, after a long silence."""

    _optuna: "OptunaStudy" = field(repr=False)
    _trial: "OptunaTrial" = field(repr=False)
    params: dict[str, Any]
    continues: int | None
    _last_sign: float = 0.0
    _reported: int = 0
    _has_warned: bool = False

    @property
    def number(self) -> int:
        return self._trial.number

    def watch(self, share: float, error: float) -> bool:
        """Report how far a trial is; True if it was pruned, or taken over by another worker."""
        try:
            if time.monotonic() - self._last_sign > SIGN_EVERY:
                self._last_sign = time.monotonic()
                self._trial.set_user_attr("seen", time.time())
            percent = int(round(100 * share, 6)) // PRUNE_EVERY * PRUNE_EVERY
            if percent <= self._reported or percent >= 100 or not math.isfinite(error):
                return False
            self._reported = percent
            self._trial.report(error, percent)
            return self._trial.should_prune()
        except Exception as failure:
            if _is_taken_over(failure):
                return True
            if not self._has_warned:
                self._has_warned = True
                reason = hide_password(failure)
                message = f"the study cannot be told how trial {self.number} goes: {reason}"
                warnings.warn(message, NatpinnWarning, stacklevel=2)
            return False

    @explained
    def finish(self, error: float, was_pruned: bool = False) -> None:
        if was_pruned:
            state = _state("PRUNED")
            _quietly(self._optuna.tell, self._trial, state=state)
        else:
            _quietly(self._optuna.tell, self._trial, error if error == error else math.inf)

    @explained
    def fail(self, reason: str) -> None:
        """End a trial whose settings cannot be run: its error is infinite."""
        _quietly(self._trial.set_user_attr, "reason", reason)
        self.finish(math.inf)

    @explained
    def release(self) -> None:
        """Leave the trial to another worker."""
        _quietly(self._optuna.tell, self._trial, state=_state("FAIL"))


def _state(name: str) -> "TrialState":
    return import_optuna().trial.TrialState[name]


def _trial(t: "FrozenTrial") -> Trial:
    attributes = t.user_attrs
    return Trial(
        t.number,
        t.params or dict(t.system_attrs.get("fixed_params", {})),
        "surplus" if attributes.get("surplus") else STATES[t.state.name],
        math.nan if t.value is None else t.value,
        attributes.get("reason", ""),
        _continues(t),
    )


def _continues(trial: "OptunaTrial | FrozenTrial") -> int | None:
    number = trial.user_attrs.get("continues")
    return number if isinstance(number, int) and 0 <= number < trial.number else None


def _root(trial: Trial, trials: list[Trial]) -> int:
    """The number of the first trial in a chain of trials that continue each other."""
    while trial.continues is not None:
        trial = trials[trial.continues]
    return trial.number


def _roots(trials: list[Trial]) -> set[int]:
    """The first trial of each chain: a trial of the search counts once, however often continued."""
    never_begun = [t.number for t in trials if t.state == "lost" and not t.params]
    counted = (t for t in trials if t.state != "surplus" and t.number not in never_begun)
    return {_root(t, trials) for t in counted}


def _is_abandoned(trial: Any) -> bool:
    owner = trial.user_attrs.get("worker")
    if owner is None:  # the worker ended before it could record its name
        return time.time() - trial.datetime_start.timestamp() > SILENCE
    is_gone = worker.is_gone(owner)
    if is_gone is None:
        return time.time() - trial.user_attrs.get("seen", 0.0) > SILENCE
    return is_gone


def _suggest(trial: "OptunaTrial", key: str, values: Range | Choice) -> "CategoricalChoiceType":
    if isinstance(values, Choice):
        return trial.suggest_categorical(key, values.options)
    if values.is_whole:
        return trial.suggest_int(key, round(values.low), round(values.high), log=values.is_log)
    return trial.suggest_float(key, values.low, values.high, log=values.is_log)


def _is_taken_over(error: Exception) -> bool:
    exceptions = import_optuna().exceptions
    return isinstance(error, exceptions.UpdateFinishedTrialError)


def _quietly(tell: Callable[..., object], *arguments: object, **options: object) -> None:
    """Tell Optuna something about a trial, unless another worker has ended the trial meanwhile."""
    try:
        tell(*arguments, **options)
    except ValueError:  # of a trial that is not running any more
        return
    except Exception as error:
        if not _is_taken_over(error):
            raise


def _sampler(optuna: ModuleType, search: Search) -> "BaseSampler":
    """Trial n gets the same settings however many workers there are; TPE learns as it goes."""
    if search.sampler == "tpe":
        own = np.random.default_rng([search.seed, zlib.crc32(worker.name().encode())])
        return optuna.samplers.TPESampler(constant_liar=True, seed=int(own.integers(2**31)))

    class Seeded(optuna.samplers.BaseSampler):
        def infer_relative_search_space(
            self, study: "OptunaStudy", trial: "FrozenTrial"
        ) -> "dict[str, BaseDistribution]":
            return {}

        def sample_relative(
            self,
            study: "OptunaStudy",
            trial: "FrozenTrial",
            search_space: "dict[str, BaseDistribution]",
        ) -> dict[str, Option]:
            return {}

        def sample_independent(
            self,
            study: "OptunaStudy",
            trial: "FrozenTrial",
            param_name: str,
            param_distribution: Any,
        ) -> Option:
            words = [search.seed, trial.number, zlib.crc32(param_name.encode())]
            random = np.random.default_rng(words)
            if hasattr(param_distribution, "choices"):
                return Choice(tuple(param_distribution.choices)).draw(random)
            is_whole = param_distribution.step == 1  # None for numbers that are not whole
            ends = param_distribution.low, param_distribution.high
            return Range(*ends, is_log=param_distribution.log, is_whole=is_whole).draw(random)

    return Seeded()
