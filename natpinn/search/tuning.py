"""Hyper-parameter search in the paper's two stages: a wide random search, then a narrow one.

All trials solve the same problem from the same start, and those of equal shapes share one compiled
program. A study's folder has the search (`study.toml`), the trials of Optuna (`study.journal`), a
run folder for each trial, and the best settings (`best.toml`).
"""

import contextlib
import math
import os
import shlex
import shutil
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import tomli_w

from ..errors import InputError, unknown
from ..files import FILE, FOLDER, PARTIAL, check_kind, create_text, read_text, replace_text
from ..problems.problem import Problem
from ..runs import trackers
from ..runs.checkpoint import remove_all, steps
from ..runs.config import Config
from ..runs.own_code import lookup_problem
from ..runs.parts import assemble, describe_objects
from ..runs.records import CHECKPOINT, DAMAGE, SHORT, SUMMARY, finite, read_summary
from ..runs.resolve import resolve
from ..runs.resume import resume
from ..runs.run import run
from ..runs.settings import flatten
from ..training.loop import Progress
from ..training.record import Record
from ..training.signals import Interrupts
from . import spaces
from .spaces import Choice, Option, Range, Space
from .storage import ENVIRONMENT, hide_address, is_inside, said_storage
from .study import Search, Study, Task, Trial

STUDY, JOURNAL, BEST, TRIALS = "study.toml", "study.journal", "best.toml", "trials"
TUNABLE = ("optimizer.", "points.", "model.", "sampling.")
NAMES = ("problem.name", "model.name", "optimizer.name")
Report = Callable[[Trial, Study], None]


@dataclass(frozen=True)
class Tuned:
    """What a search has found so far."""

    best: Trial | None
    settings: dict[str, Any]  # of the best trial, with dotted keys
    trials: list[Trial]
    is_complete: bool
    folder: Path | None
    ranked_by: str  # the error that is smallest in the best trial
    has_own_code: bool = False
    is_stopped: bool = False  # by a signal


@dataclass(frozen=True)
class Workbench:
    """A search with all that its trials have in common."""

    search: Search
    study: Study
    problem: Problem
    model: Any
    folder: Path | None

    def found(self, is_stopped: bool = False) -> Tuned:
        best = self.study.best
        return Tuned(
            best,
            self.search.settings | (best.params if best else {}),
            self.study.trials(),
            len(self.study.finished) >= self.search.total,
            self.folder,
            "L2 error" if self.problem.solution is not None else "validation loss",
            self.model is not None or names_code(self.search.settings) is not None,
            is_stopped,
        )

    def config(self, params: Mapping[str, Any]) -> Config:
        return resolve({**self.search.settings, **params}, self.problem)

    def trial_folder(self, number: int | None) -> Path | None:
        if self.folder is None or number is None:
            return None
        return self.folder / TRIALS / f"{number:04d}"


def tune(
    problem: Problem | str,
    optimizer: str = "spring",
    space: Mapping[str, Any] | None = None,
    *,
    model: Any = None,
    settings: Mapping[str, Any] | None = None,
    trials: int = 50,
    refine: int | None = None,
    steps: int | None = None,
    budget: float | None = None,
    sampler: str = "random",
    prune: bool = False,
    seed: int = 0,
    out: Path | str | None = None,
    storage: str | None = None,
    report: Report | None = None,
) -> Tuned:
    """Look for the settings of an optimizer with the smallest final error on a problem.

    The search has two stages: trials over the whole space, then trials in a quarter of each range
    around the best of those.

    **Arguments:**

    - `problem`: a `Problem`, or the name of one of the catalogue.
    - `optimizer`: the name of the optimizer whose settings are looked for. Default: `"spring"`.
    - `space`: where to look, as `{"optimizer.damping": {"log_uniform": [1e-9, 1]}}`, with
      `uniform`, `log_uniform` or `choice`. Default: as wide as makes sense for the optimizer.
    - `model`: as in `natpinn.solve`. Default: the problem's own network.
    - `settings`: of all trials, with dotted keys, as `{"points.interior": 300}`. Default: none.
    - `trials`: how many in the first stage. Default: 50.
    - `refine`: how many in the second stage. Default: as many as `trials`.
    - `steps`: how many steps a trial has at most. Default: no limit.
    - `budget`: seconds of training of a trial. Default: no limit, or 60 where no steps are given
      either.
    - `sampler`: `"random"`, or `"tpe"`, with which Optuna's tree-structured Parzen estimator
      suggests all trials. Default: `"random"`.
    - `prune`: whether trials are cut short that are worse than the median of the others at the same
      share of their time. Default: False.
    - `seed`: of the search; another one tries other settings. Default: 0.
    - `out`: a folder that keeps the study, which any number of processes may share, and which goes
      on where it was when the same search is started again. Default: none.
    - `storage`: the URL of a database for workers on several machines. Default: a journal in `out`.
    - `report`: a function of a trial and the study, called after each trial. Default: none.

    **Returns:** what was found: `best`, the trial with the smallest error, its `settings`, and all
    `trials`.

    **Raises:** `InputError` for a search that cannot work, before the first trial, and where no
    trial can run.

        import natpinn

        space = {"optimizer.damping": {"log_uniform": [1e-8, 1e-2]}}
        found = natpinn.tune("poisson_2d", "spring", space, trials=2, refine=0, steps=3)
        print(found.best.error, found.best.params)
    """
    search = plan_search(
        problem,
        optimizer,
        None if space is None else spaces.parse_table(space),
        settings or {},
        steps=steps,
        budget=budget,
        trials=trials,
        refine=trials if refine is None else refine,
        sampler=sampler,
        prune=prune,
        seed=seed,
    )
    found = problem if isinstance(problem, Problem) else None
    return work(open_study(search, found, model, out, storage), report)


def plan_search(
    problem: Problem | str,
    optimizer: str,
    space: Space | None,
    settings: Mapping[str, Any],
    *,
    steps: int | None = None,
    budget: float | None = None,
    **options: Any,
) -> Search:
    """A search, over a wide space unless one is given."""
    name = problem if isinstance(problem, str) else problem.name
    limits = {"train.steps": steps, "train.budget": budget}
    given = {**settings, "problem.name": name, "optimizer.name": optimizer}
    given |= {key: value for key, value in limits.items() if value is not None}
    if space is None:
        config = resolve(given, problem if isinstance(problem, Problem) else _lookup(given))
        wide = spaces.wide(optimizer, flatten({"optimizer": config.as_dict()["optimizer"]}))
        space = {key: values for key, values in wide.items() if key not in given}
    return Search(given, space, **options)


def open_study(
    search: Search,
    problem: Problem | None = None,
    model: Any = None,
    out: Path | str | None = None,
    storage: str | None = None,
) -> Workbench:
    """A search that is ready for work; its settings are checked before the first trial."""
    problem = _lookup(search.settings) if problem is None else problem
    search = check_space(search, problem)
    folder = None if out is None else Path(out)
    if folder is None:
        return Workbench(search, Study.open(search, storage), problem, model, None)
    storage = _agree(folder, search, model, storage)
    if storage is None:
        _make(folder)
    for name, kind in ((TRIALS, FOLDER), (STUDY, FILE), (BEST, FILE)):
        check_kind(folder / name, kind)
    study = Study.open(search, storage or folder / JOURNAL, folder.resolve().name)
    _publish(folder, search, model, storage)
    return Workbench(search, study, problem, model, folder)


def join(
    folder: Path,
    problem: Problem | None = None,
    model: Any = None,
    storage: str | None = None,
) -> Workbench:
    """One more worker for a study that exists; a database elsewhere has to be named again."""
    search, others = read_study(folder)
    own = names_code(search.settings) or others.get("model")
    if own and problem is None and model is None:
        raise InputError(
            f"the study in {folder} needs code of your own ({own}), and files run no code: start "
            f"it with the command that you began it with"
        )
    if elsewhere := trackers.unsaid(search.settings.get("track.trackers")):
        raise InputError(
            f"the study in {folder} sends records to {elsewhere[0]}, which natpinn does not "
            f"contact because a file names it: set {trackers.ENVIRONMENT}={elsewhere[0]}"
        )
    return open_study(search, problem, model, folder, storage)


def read_study(folder: Path) -> tuple[Search, dict[str, Any]]:
    """The search of a study, and its whole table with the storage and the model's name, if any."""
    path = folder / STUDY
    try:
        table = tomllib.loads(read_text(path))
        others = (table.get(key) for key in ("storage", "model"))
        if not isinstance(table["search"], dict) or any(
            not isinstance(value, str | None) for value in others
        ):
            raise TypeError("an entry is of another type")
        entries = [entry.name for entry in fields(Search)]
        for entry in table["search"]:
            if entry not in entries:
                raise unknown("entry of [search]", entry, entries)
        space = spaces.parse_table(table["search"]["space"])
        return Search(**{**table["search"], "space": space}), table
    except OSError as error:
        why = "" if isinstance(error, FileNotFoundError) else f": {error.strerror}"
        raise InputError(f"{folder} is not a study: {STUDY} cannot be read{why}") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except DAMAGE as error:
        raise InputError(f"{path} is damaged: {str(error)[:SHORT]}") from error


def names_code(settings: Mapping[str, Any]) -> str | None:
    """The code of a user's own that settings name, if any."""
    names = (str(settings.get(f"{kind}.name", "")) for kind in ("problem", "model"))
    return next((name for name in names if ":" in name), None)


def check_space(search: Search, problem: Problem) -> Search:
    """The search, if each setting that is looked for exists and accepts the ends of its range."""
    defaults = flatten(resolve(search.settings, problem).as_dict())
    typed: Space = {}
    for key, values in search.space.items():
        if key in search.settings:
            raise InputError(f"{key} is both set and looked for: leave out one of the two")
        if key in NAMES or not key.startswith(TUNABLE):
            kinds = ", ".join(f"{kind}…" for kind in TUNABLE)
            raise InputError(f"{key} cannot be looked for: only {kinds} can, except names")
        default = defaults.get(key)
        is_whole = isinstance(default, int) and not isinstance(default, bool)
        is_whole = is_whole or key.startswith("points.")  # whose default may be None
        is_range = not isinstance(values, Choice)
        typed[key] = replace(values, is_whole=True) if is_whole and is_range else values
    checked = replace(search, space=typed)
    for key, values in typed.items():
        others = {k: _ends(v)[0] for k, v in typed.items() if k != key}
        for value in _ends(values):
            resolve({**search.settings, **others, key: value}, problem).build_optimizer()
    return checked


def work(bench: Workbench, report: Report | None = None) -> Tuned:
    """Run trials until none is left to begin, or a signal comes."""
    with Interrupts() as interrupts:
        while not interrupts.received and (task := bench.study.take()) is not None:
            _run(bench, task)
            if report is not None:
                report(bench.study.trials()[task.number], bench.study)
    found = bench.found(bool(interrupts.received))
    if bench.folder is not None and found.best is not None:
        config = bench.config(found.best.params)
        described = describe_objects(config, bench.problem, bench.model, None)
        try:
            replace_text(bench.folder / BEST, tomli_w.dumps(described.as_dict()))
        except OSError as error:
            raise InputError(f"cannot write to {bench.folder}: {error.strerror}") from error
    return found


def _run(bench: Workbench, task: Task) -> None:
    """One trial, from its start or from where a worker that died left it."""
    was_pruned = False

    def watch(progress: Progress) -> bool:
        nonlocal was_pruned
        was_pruned = was_pruned or task.watch(_share(progress), progress.error)
        return was_pruned

    folder = bench.trial_folder(task.number)
    try:
        if folder is not None:
            check_kind(folder, FOLDER)
        summary = _continue(bench, task, watch)
        if summary is None:
            parts = assemble(bench.config(task.params), bench.problem, bench.model)
            summary = run(parts, folder, progress=False, callbacks=[watch]).summary
    except InputError as error:  # as when memory does not suffice
        task.fail(str(error))
        if bench.study.best is None:
            raise
        return
    except BaseException:
        task.release()
        raise
    if summary["status"] == "interrupted":
        task.release()
        return
    task.finish(final_error(summary), was_pruned)
    if folder is not None:
        remove_all(folder / CHECKPOINT)  # those of many trials are large


def final_error(summary: Mapping[str, Any]) -> float:
    """What runs are ranked by: the L2 error at the end, or the loss where none is known."""
    key = "final_l2" if summary.get("best_l2") is not None else "final_validation_loss"
    error = finite(summary.get(key))
    return math.inf if error is None or summary.get("status") == "diverged" else error


def _continue(bench: Workbench, task: Task, watch: Callable[[Progress], bool]) -> Record | None:
    """The outcome of the run that this trial continues; None if there is nothing to go on from."""
    new = bench.trial_folder(task.number)
    old = _left_behind(bench, task.continues)
    if new is None or old is None or os.path.lexists(new):
        return None
    check_kind(old, FOLDER)
    if not steps(old / CHECKPOINT):
        shutil.rmtree(old, ignore_errors=True)
        return None
    old.rename(new)
    if (new / SUMMARY).exists():
        summary = read_summary(new)
        if summary.get("status") in ("finished", "diverged"):
            return summary  # its worker died before it could tell
    model, named = bench.model, bench.config(task.params).model.name
    model = named if model is None and ":" in named else model
    options = {"trackers": bench.config(task.params).track.trackers, "callbacks": [watch]}
    return resume(new, bench.problem, model, progress=False, **options).summary


def _left_behind(bench: Workbench, number: int | None) -> Path | None:
    """The folder of the trial that is continued, or of the one that it continued itself."""
    trials = bench.study.trials()
    while number is not None:
        folder = bench.trial_folder(number)
        if folder is not None and folder.exists():
            return folder
        number = trials[number].continues
    return None


def _share(progress: Progress) -> float:
    """How much of a trial is done."""
    steps = 0.0 if progress.steps is None else progress.step / progress.steps
    seconds = 0.0 if progress.budget is None else progress.seconds / progress.budget
    return max(steps, seconds)


def _lookup(settings: Mapping[str, Any]) -> Problem:
    if "problem.name" not in settings:
        raise InputError("a search needs a problem: problem.name is missing")
    return lookup_problem(str(settings["problem.name"]), settings.get("problem.dimension"))


def _ends(values: Range | Choice) -> tuple[Option, ...]:
    if isinstance(values, Choice):
        return values.options
    ends = (values.low, values.high)
    return tuple(map(round, ends)) if values.is_whole else ends


def _agree(folder: Path, search: Search, model: Any, storage: str | None) -> str | None:
    """The storage of a study, if its folder is free or holds the same search."""
    try:
        if not (folder / STUDY).exists():
            records_of_others = [p for p in folder.iterdir() if not _is_mine(p.name)]
            if records_of_others:
                raise InputError(f"{folder} holds other files: choose another folder with --out")
            return storage or said_storage()
    except FileNotFoundError:
        return storage or said_storage()
    except OSError as error:
        raise InputError(f"cannot use {folder}: {error.strerror}") from error
    known, others = read_study(folder)
    old, new = known.describe(), search.describe()
    old["model"], new["model"] = others.get("model"), _model_name(model)
    stored = others.get("storage")
    old["storage"], new["storage"] = (hide_address(s) for s in (stored, storage or stored))
    for key in old:
        if old[key] != new[key]:
            raise InputError(
                f"{folder} holds a study with other {key} ({old[key]} there, {new[key]} here): "
                f"choose another folder with --out, or go on with `natpinn tune "
                f"{shlex.quote(str(folder))}`"
            )
    return storage or _stored(stored, folder)


def _stored(storage: str | None, folder: Path) -> str | None:
    """The storage that a study's file names, where that is not elsewhere, or was said as well."""
    if storage is None or is_inside(storage, folder):
        return storage
    said = said_storage()
    if said is None or hide_address(said) != hide_address(storage):
        raise InputError(
            f"the study in {folder} keeps its trials in {hide_address(storage)}, which natpinn "
            f"does not contact because a file names it: say --storage, or set {ENVIRONMENT}"
        )
    return said


def _publish(folder: Path, search: Search, model: Any, storage: str | None) -> None:
    """Write what the search is, unless another worker has just done so; no password is written."""
    table = {"search": search.describe()}
    hidden = None if storage is None else hide_address(storage)
    others = {"storage": hidden, "model": _model_name(model)}
    table |= {key: value for key, value in others.items() if value is not None}
    _make(folder / TRIALS)
    try:
        with contextlib.suppress(FileExistsError):
            create_text(folder / STUDY, tomli_w.dumps(table), is_private=storage is not None)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from error


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from error


def _is_mine(name: str) -> bool:
    return name.startswith((STUDY, JOURNAL, BEST, TRIALS)) or name.endswith(PARTIAL)


def _model_name(model: object) -> str | None:
    return None if model is None else type(model).__name__
