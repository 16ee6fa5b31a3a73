"""Experiments: a TOML file of methods, settings, budgets and search spaces, and its runs.

A run's folder is OUT/EXPERIMENT/METHOD-SEED. What is there is not run again; what was cut short, or
run for less time than is wanted now, goes on.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any

from ..bench.sketches import compare_algorithms
from ..errors import InputError, unknown
from ..files import read_text, replace_text
from ..machine import machine
from ..problems.problem import Problem
from ..runs import trackers
from ..runs.config import Config
from ..runs.folder import is_locked
from ..runs.own_code import lookup_problem
from ..runs.parts import assemble
from ..runs.records import CONFIG, DAMAGE, SUMMARY, finite, read_config, read_history, read_summary
from ..runs.resolve import resolve
from ..runs.resume import resume
from ..runs.run import run
from ..runs.settings import flatten, read_toml
from ..training.signals import Interrupts
from . import spaces
from .spaces import Space
from .study import Search
from .tuning import check_space, names_code

TABLES = ("title", "budget", "seeds", "settings", "methods", "search", "nystrom")
NYSTROM = ("rows", "sketches", "runs", "warm_ups")
TABLE = "nystrom.json"
LONGEST = 60.0  # seconds for each row of that table


@dataclass(frozen=True)
class Experiment:
    """An experiment as its file describes it."""

    name: str
    title: str
    budget: float
    seeds: tuple[int, ...]
    methods: dict[str, dict[str, Any]]  # settings with dotted keys
    search: dict[str, Space]
    nystrom: dict[str, Any] | None  # a comparison of sketches, in place of runs

    def settings(self, method: str) -> dict[str, Any]:
        if method not in self.methods:
            raise unknown(f"method of {self.name}", method, self.methods)
        return self.methods[method]

    def search_for(self, method: str, budget: float, **options: Any) -> Search:
        """Look for a method's settings where the file says so."""
        if method not in self.search:
            raise unknown(f"method of {self.name} with a search space", method, self.search)
        space = self.search[method]
        fixed = {k: v for k, v in self.settings(method).items() if k not in space}
        return Search(fixed | {"train.budget": budget}, space, **options)


@dataclass(frozen=True)
class Planned:
    """One run of an experiment."""

    method: str
    seed: int
    budget: float
    settings: dict[str, Any]
    folder: Path

    def state(self) -> "State":
        """How far the run in the folder is."""
        try:
            return self._state()
        except InputError as error:
            return State("failed", message=str(error))

    def _state(self) -> "State":
        if not (self.folder / CONFIG).exists():
            return State("missing")
        if difference := self._difference():
            return State("outdated", message=difference)
        if is_locked(self.folder):
            return State("running", *_progress(self.folder))
        if not (self.folder / SUMMARY).exists():
            return State("unfinished", *_progress(self.folder))
        summary = read_summary(self.folder)
        error = finite(summary.get("l2", summary.get("best_l2")))  # the latter before format 7
        found = (finite(summary.get("seconds")) or 0.0, error)
        if summary.get("status") == "diverged":
            return State("diverged", *found)
        is_whole = summary.get("status") == "finished" and found[0] >= self.budget
        return State("finished" if is_whole else "unfinished", *found)

    def run(self, progress: bool) -> "State":
        """Start or continue the run where that is needed; its state afterwards."""
        before = self.state()
        if before.name not in ("missing", "unfinished"):
            return before
        try:
            config = self._config()
            problem = _problem(config.problem.name, config.problem.dimension)
            if before.name == "missing":
                run(assemble(config, problem), self.folder, progress)
            else:
                resume(self.folder, problem, budget=self.budget, progress=progress)
        except InputError as error:
            return State("failed", message=str(error))
        return self.state()

    def _config(self) -> Config:
        return resolve({**self.settings, "train.budget": self.budget, "seed": self.seed})

    def _difference(self) -> str:
        """The first setting in which the run in the folder is not as the experiment has it."""
        old, new = flatten(read_config(self.folder)), flatten(self._config().as_dict())
        proposed = {key for key, n in new.items() if key.startswith("points.") and n == "none"}
        for key in sorted((old.keys() | new.keys()) - proposed):
            if not key.startswith(("train.", "format")) and old.get(key) != new.get(key):
                return _begun_with(self.folder, key, old.get(key), new.get(key))
        return ""


@dataclass(frozen=True)
class State:
    """How far a run is."""

    name: str  # missing, unfinished, running, finished, diverged, outdated, or failed
    seconds: float = 0.0
    l2: float | None = None
    message: str = ""


def read(path: Path) -> Experiment:
    """An experiment from its file; mistakes in the file are raised here."""
    table = read_toml(path)
    try:
        return _parse(path.stem, table)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def plan(
    experiment: Experiment,
    out: Path,
    scale: float = 1.0,
    seeds: Sequence[int] | None = None,
    methods: Sequence[str] = (),
) -> list[Planned]:
    """All runs of an experiment, or those of some methods."""
    _check_scale(scale)
    budget = scale * experiment.budget
    return [
        Planned(name, seed, budget, experiment.settings(name), folder / f"{name}-{seed}")
        for folder in [out / experiment.name]
        for seed in seeds or experiment.seeds
        for name in methods or experiment.methods
    ]


def run_all(planned: Sequence[Planned], progress: bool) -> Iterator[tuple[Planned, State]]:
    """Run what is missing, one after the other, until a signal comes."""
    with Interrupts() as interrupts:
        for one in planned:
            yield one, one.run(progress)
            if interrupts.received:
                return


def compare_sketches(experiment: Experiment, out: Path, scale: float = 1.0) -> dict[str, Any]:
    """The table of Nyström approximations; rows that are in its file are not measured again."""
    assert experiment.nystrom is not None
    options = experiment.nystrom
    _check_scale(scale)
    path = out / experiment.name / TABLE
    path.parent.mkdir(parents=True, exist_ok=True)
    found, difference = _measured(path, options)
    if difference:
        raise InputError(difference)
    for share in options["sketches"]:
        if str(share) in found:
            continue
        found |= compare_algorithms(
            options["rows"], [share], options["runs"], options["warm_ups"], LONGEST * scale
        )
        table = {"sketches": found, **_sizes(options), **machine()}
        replace_text(path, json.dumps(table, indent=2) + "\n")
    return found


def sketches_state(experiment: Experiment, out: Path) -> State:
    """How far the table of Nyström approximations is."""
    assert experiment.nystrom is not None
    found, difference = _measured(out / experiment.name / TABLE, experiment.nystrom)
    if difference:
        return State("outdated", message=difference)
    is_whole = all(str(share) in found for share in experiment.nystrom["sketches"])
    return State("finished" if is_whole else "unfinished" if found else "missing")


def _measured(path: Path, options: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The rows that a table has, and the setting that is not as the experiment has it, if any."""
    if not os.path.lexists(path):
        return {}, ""
    try:
        table = json.loads(read_text(path))
        for key, wanted in _sizes(options).items():
            if table.get(key) != wanted:
                return {}, _begun_with(path, key, table.get(key), wanted)
        for row in table["sketches"].values():
            assert all(_is_row(row[name]) for name in ("standard", "gpu"))
            assert finite(row["speedup"]) is not None
        return table["sketches"], ""
    except (OSError, *DAMAGE):
        raise InputError(f"{path} is no table of sketches: remove it, and run again") from None


def _is_row(row: Mapping[str, Any]) -> bool:
    """Whether all is there that the table shows."""
    return all(finite(row[key]) is not None for key in ("seconds", "peak_memory_bytes", "error"))


def _sizes(options: Mapping[str, Any]) -> dict[str, int]:
    """The settings that all rows of the table share."""
    return {key: options[key] for key in ("rows", "runs", "warm_ups")}


def _begun_with(path: Path, key: str, old: object, new: object) -> str:
    return (
        f"{path} was begun with {key} = {old!r}, and the experiment has {new!r}: choose another "
        f"--out, or remove it"
    )


def _check_scale(scale: float) -> None:
    if not scale > 0:
        raise InputError(f"a budget is scaled by a positive number, got {scale}")


@cache
def _problem(name: str, dimension: int | None) -> Problem:
    """The same object for all runs, which then share compiled programs."""
    return lookup_problem(name, dimension)


def _parse(name: str, table: dict[str, Any]) -> Experiment:
    for key in table:
        if key not in TABLES:
            raise unknown("entry", key, TABLES)
    title = _typed(table, "title", str, "a text")
    if "nystrom" in table:
        options = _typed(table, "nystrom", dict, "a table")
        if set(options) != set(NYSTROM):
            raise InputError(f"[nystrom] needs {', '.join(NYSTROM)}, got {', '.join(options)}")
        for key in ("rows", "runs", "warm_ups"):
            _typed(options, key, int, "a whole number")
        sketches = _typed(options, "sketches", list, "a list of shares")
        if not all(isinstance(share, float) and 0 < share < 1 for share in sketches):
            raise InputError(f"sketches are shares of the rows below 1, got {sketches}")
        return Experiment(name, title, 0.0, (), {}, {}, options)
    budget = _typed(table, "budget", int | float, "a number of seconds")
    if not budget > 0:
        raise InputError(f"budget must be positive, got {budget}")
    seeds = _typed(table, "seeds", list, "a list of numbers")
    if not seeds or any(not isinstance(s, int) or isinstance(s, bool) or s < 0 for s in seeds):
        raise InputError(f"seeds must be whole numbers from 0, got {seeds}")
    shared = flatten(_typed(table, "settings", dict, "a table")) if "settings" in table else {}
    tables = _typed(table, "methods", dict, "a table")
    methods = {m: shared | flatten(_typed(tables, m, dict, "a table")) for m in tables}
    if not methods:
        raise InputError("an experiment needs at least one method, as [methods.spring]")
    for method, settings in methods.items():
        _check_method(method, settings)
        try:
            resolve({**settings, "train.budget": float(budget)}).build_optimizer()
        except InputError as error:
            raise InputError(f"methods.{method}: {error}") from error
    found = Experiment(name, title, float(budget), tuple(seeds), methods, {}, None)
    tables = _typed(table, "search", dict, "a table") if "search" in table else {}
    for method in tables:
        if method not in methods:
            raise unknown("method in [search]", method, methods)
        space = spaces.parse_table(_typed(tables, method, dict, "a table"))
        found.search[method] = space
        problem = methods[method]["problem.name"], methods[method].get("problem.dimension")
        check_space(found.search_for(method, found.budget), _problem(*problem))
    return found


def _check_method(name: str, settings: Mapping[str, Any]) -> None:
    """Check that a method's name can name a folder, and that it sets no code and no limits."""
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise InputError(f"a method's name has letters, digits, -, _ and dots, got {name!r}")
    if own := names_code(settings):
        raise InputError(f"methods.{name} needs code of your own ({own}), and files run no code")
    if elsewhere := trackers.unsaid(settings.get("track.trackers")):
        raise InputError(
            f"methods.{name} sends records to {elsewhere[0]}, which natpinn does not contact "
            f"because a file names it: set {trackers.ENVIRONMENT}={elsewhere[0]}"
        )
    for key in settings:
        if key == "seed" or key.startswith("train."):
            raise InputError(f"methods.{name}: {key} is not for methods: set budget and seeds")


def _typed(table: Mapping[str, Any], key: str, kind: type | UnionType, what: str) -> Any:
    if key not in table:
        raise InputError(f"{key} is missing: it is {what}")
    if not isinstance(table[key], kind) or isinstance(table[key], bool):
        raise InputError(f"{key} must be {what}, got {table[key]!r}")
    return table[key]


def _progress(folder: Path) -> tuple[float, float | None]:
    """The last time and the error of the parameters so far of a run that has no summary yet."""
    try:
        history = read_history(folder)
    except InputError:
        return 0.0, None
    known = [r for r in history if r.get("l2") == r.get("l2", 0.0)]
    best = min(known, key=lambda r: r.get("validation_loss", r["l2"]), default={"l2": None})
    return (history[-1]["seconds"] if history else 0.0), best["l2"]
