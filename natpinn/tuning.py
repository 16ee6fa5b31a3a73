"""Hyper-parameter search in the paper's two stages: a wide random search, then a narrow one.

All trials solve the same problem from the same start, and those of equal shapes share one compiled
program. A study's folder has the search (`study.toml`), the trials of Optuna (`study.journal`), a
run folder for each trial, and the best settings (`best.toml`).
"""

import math
import shutil
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from . import records, spaces
from .config import Config, lookup_problem, resolve
from .errors import InputError
from .problem import Problem
from .records import replace_text
from .resume import resume
from .run import assemble, run
from .settings import flatten
from .solution import Solution
from .spaces import Space
from .study import Search, Study, Task, Trial
from .train import Progress

STUDY, JOURNAL, BEST, TRIALS = "study.toml", "study.journal", "best.toml", "trials"


@dataclass(frozen=True)
class Tuned:
    """What a search has found so far."""

    best: Trial | None
    settings: dict[str, Any]  # of the best trial, with dotted keys
    trials: list[Trial]
    is_complete: bool
    folder: Path | None
    is_stopped: bool = False  # by a signal


@dataclass(frozen=True)
class Bench:
    """A search with all that its trials have in common."""

    search: Search
    study: Study
    problem: Problem
    model: Any
    folder: Path | None

    def found(self, is_stopped: bool = False) -> Tuned:
        best = self.study.best
        settings = self.search.settings | (best.params if best else {})
        is_complete = len(self.study.finished) >= self.search.total
        return Tuned(best, settings, self.study.trials(), is_complete, self.folder, is_stopped)

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
    refine: int = 50,
    steps: int | None = None,
    budget: float | None = None,
    sampler: str = "random",
    prune: bool = False,
    seed: int = 0,
    out: Path | str | None = None,
    storage: str | None = None,
    report: Callable[[Trial, Study], None] | None = None,
) -> Tuned:
    """Look for the settings of an optimizer with the smallest final error on a problem.

    `space` says where, as {"optimizer.damping": {"log_uniform": [1e-9, 1]}}; without it, as wide as
    makes sense for the optimizer. `trials` look everywhere and `refine` more around the best. A
    trial takes `budget` seconds or `steps`. The folder `out` keeps the study, which any number of
    processes may share, and which goes on where it was when the same search is started again.
    """
    search = plan_search(
        problem,
        optimizer,
        None if space is None else spaces.parse_table(space),
        settings or {},
        steps=steps,
        budget=budget,
        trials=trials,
        refine=refine,
        sampler=sampler,
        prune=prune,
        seed=seed,
    )
    found = problem if isinstance(problem, Problem) else None
    return work(open_bench(search, found, model, out, storage), report)


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
    """A search, wide unless told where to look."""
    name = problem if isinstance(problem, str) else problem.name
    limits = {"train.steps": steps, "train.budget": budget}
    given = {**settings, "problem.name": name, "optimizer.name": optimizer}
    given |= {key: value for key, value in limits.items() if value is not None}
    if space is None:
        config = resolve(given, problem if isinstance(problem, Problem) else _lookup(given))
        space = spaces.wide(optimizer, flatten({"optimizer": config.as_dict()["optimizer"]}))
    return Search(given, space, **options)


def open_bench(
    search: Search,
    problem: Problem | None = None,
    model: Any = None,
    out: Path | str | None = None,
    storage: str | None = None,
) -> Bench:
    """A search that is ready for work; all its settings are tried before the first trial."""
    problem = _lookup(search.settings) if problem is None else problem
    _check_space(search, problem)
    folder = None if out is None else Path(out)
    if folder is not None:
        _begin(folder, search, storage)
    where = storage or (None if folder is None else folder / JOURNAL)
    name = "natpinn" if folder is None else folder.resolve().name
    return Bench(search, Study.open(search, where, name), problem, model, folder)


def join(folder: Path, problem: Problem | None = None, model: Any = None) -> Bench:
    """One more worker for a study that is there."""
    search, storage = read_study(folder)
    name = str(search.settings.get("problem.name"))
    if ":" in name and problem is None:
        raise InputError(
            f"the study in {folder} solves a problem of your own ({name}), and files run no code: "
            f"start it with the same command as before"
        )
    return open_bench(search, problem, model, folder, storage)


def read_study(folder: Path) -> tuple[Search, str | None]:
    try:
        table = tomllib.loads((folder / STUDY).read_text())
        space = spaces.parse_table(table["search"]["space"])
        search = Search(**{**table["search"], "space": space})
        return search, table.get("storage")
    except OSError as error:
        raise InputError(f"{folder} is not a study: {STUDY} cannot be read") from error
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise InputError(f"{folder / STUDY} is damaged: {error}") from error


def work(bench: Bench, report: Callable[[Trial, Study], None] | None = None) -> Tuned:
    """Run trials until none is left to begin."""
    is_stopped = False
    while not is_stopped and (task := bench.study.take()) is not None:
        is_stopped = _run(bench, task)
        if report is not None and not is_stopped:
            report(bench.study.trials()[task.number], bench.study)
    found = bench.found(is_stopped)
    if bench.folder is not None and found.best is not None:
        described = bench.config(found.best.params).as_dict()
        replace_text(bench.folder / BEST, tomli_w.dumps(described))
    return found


def _run(bench: Bench, task: Task) -> bool:
    """One trial, from its start or from where a worker that died left it; whether a signal came."""
    was_pruned = False

    def watch(progress: Progress) -> bool:
        nonlocal was_pruned
        error = progress.metrics.get(progress.criterion, math.nan)
        was_pruned = was_pruned or task.watch(_share(progress), error)
        return was_pruned

    try:
        solution = _continue(bench, task, watch) or run(
            assemble(bench.config(task.params), bench.problem, bench.model),
            bench.trial_folder(task.number),
            progress=False,
            callbacks=[watch],
        )
    except BaseException:
        task.fail()
        raise
    if solution.summary["status"] == "interrupted":
        return True  # the trial goes on with the next worker
    task.finish(final_error(solution.summary), was_pruned)
    return False


def final_error(summary: Mapping[str, Any]) -> float:
    """What runs are ranked by: the L2 error at the end, or the loss where none is known."""
    key = "final_l2" if summary.get("best_l2") is not None else "final_loss"
    error = summary.get(key)
    if error is None or not math.isfinite(error) or summary["status"] == "diverged":
        return math.inf
    return error


def _continue(bench: Bench, task: Task, watch: Callable[[Progress], bool]) -> Solution | None:
    """The run that this trial continues, from its last checkpoint, if there is one."""
    old, new = bench.trial_folder(task.continues), bench.trial_folder(task.number)
    if old is None or new is None or not old.exists():
        return None
    has_checkpoint = any((old / records.CHECKPOINT).glob("*"))
    if not has_checkpoint or new.exists():
        shutil.rmtree(old, ignore_errors=True)
        return None
    old.rename(new)
    return resume(new, bench.problem, bench.model, progress=False, callbacks=[watch])


def _share(progress: Progress) -> float:
    """How much of a trial is done."""
    steps = 0.0 if progress.steps is None else progress.step / progress.steps
    seconds = 0.0 if progress.budget is None else progress.seconds / progress.budget
    return max(steps, seconds)


def _lookup(settings: Mapping[str, Any]) -> Problem:
    return lookup_problem(str(settings["problem.name"]), settings.get("problem.dimension"))


def _check_space(search: Search, problem: Problem) -> None:
    """Every setting that is looked for exists and takes the values that it may get."""
    for key, values in search.space.items():
        if key in search.settings:
            raise InputError(f"{key} is both set and looked for: leave it out of one")
        ends = values.options if isinstance(values, spaces.Choice) else (values.low, values.high)
        others = {k: _first(v) for k, v in search.space.items() if k != key}
        for value in ends:
            resolve(search.settings | others | {key: value}, problem).build_optimizer()


def _first(values: Any) -> Any:
    return values.options[0] if isinstance(values, spaces.Choice) else values.low


def _begin(folder: Path, search: Search, storage: str | None) -> None:
    """Write what the search is, or see that it is the one that the folder has."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TRIALS).mkdir(exist_ok=True)
        if (folder / STUDY).exists():
            _compare(folder, search)
            return
        if any(p.name != TRIALS and not p.name.endswith(records.PARTIAL) for p in folder.iterdir()):
            raise InputError(f"{folder} holds other files: choose another folder with --out")
        table = {"search": search.describe(), **({"storage": storage} if storage else {})}
        replace_text(folder / STUDY, tomli_w.dumps(table))
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from error


def _compare(folder: Path, search: Search) -> None:
    known, _ = read_study(folder)
    old, new = known.describe(), search.describe()
    for key in old:
        if old[key] != new[key]:
            raise InputError(
                f"{folder} holds a study with other {key} ({old[key]} there, {new[key]} here): "
                f"choose another folder with --out, or go on with `natpinn tune {folder}`"
            )
