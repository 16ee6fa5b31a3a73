"""Run folders, read for tables and figures; what cannot be read is said, and left out."""

import csv
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import records
from ..errors import InputError
from ..settings import flatten

ERRORS = (1e-3, 1e-4, 1e-5, 1e-6)  # of which the first time is told
COLUMNS = ("run", "step", "seconds", "loss", "l2_error")  # of a file of published curves
HIDDEN = ("format", "problem.own", "checkpoint.every_seconds", "track.trackers", "optimizer.name")


@dataclass(frozen=True)
class Curve:
    """A loss and an error over steps and seconds, of ours or published."""

    problem: str
    name: str
    step: list[float]
    seconds: list[float]
    loss: list[float]
    error: list[float]
    effective_dimension: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Run:
    """One run folder."""

    folder: Path
    name: str  # among the others
    config: dict[str, Any]  # with dotted keys
    summary: dict[str, Any]
    curve: Curve
    status: str  # finished, interrupted, diverged, or unfinished

    @property
    def problem(self) -> str:
        return self.curve.problem

    @property
    def method(self) -> str:
        """The same for runs that differ in their seed only."""
        return self.name.removesuffix(f"-{self.seed}")

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 0))

    @property
    def rows(self) -> int:
        return sum(v for k, v in self.config.items() if k.startswith("points."))

    @property
    def best(self) -> float | None:
        return min((e for e in self.curve.error if math.isfinite(e)), default=None)

    @property
    def final(self) -> float | None:
        return self.curve.error[-1] if self.curve.error else None

    @property
    def steps_per_second(self) -> float | None:
        seconds = self.curve.seconds[-1] if self.curve.seconds else 0.0
        return self.curve.step[-1] / seconds if seconds else None

    def seconds_to(self, error: float) -> float | None:
        """When an error was first reached."""
        pairs = zip(self.curve.seconds, self.curve.error, strict=True)
        return next((seconds for seconds, found in pairs if found <= error), None)

    @property
    def settings(self) -> dict[str, Any]:
        """The optimizer's."""
        own = {k.removeprefix("optimizer."): v for k, v in self.config.items() if _is_shown(k, v)}
        return {key: value for key, value in own.items() if "." not in key}

    @property
    def command(self) -> str:
        """What runs it again."""
        words = ["natpinn", "solve", str(self.config.get("problem.name", self.problem))]
        return shlex.join([*words, "--config", str(self.folder / records.CONFIG)])


def collect(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """All runs in some folders, at any depth, and why others were left out."""
    folders = []
    for path in paths:
        if not path.exists():
            raise InputError(f"{path} is not there: name run folders, or folders that hold some")
        folders += _run_folders(path)
    folders = list(dict.fromkeys(folders))
    runs, left_out = [], []
    for folder, name in zip(folders, _names(folders), strict=True):
        try:
            runs.append(_read(folder, name))
        except InputError as error:
            left_out.append(f"{folder}: {error}")
    if not runs:
        why = f" ({left_out[0]})" if left_out else ""
        raise InputError(f"no run was found in {', '.join(map(str, paths))}{why}")
    return runs, left_out


def by_problem(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs of different problems are never compared; those of one are ordered by their error."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.problem, []).append(run)
    order = {n: sorted(g, key=lambda run: run.best or math.inf) for n, g in groups.items()}
    return dict(sorted(order.items()))


def read_published(path: Path) -> list[Curve]:
    """Curves from a CSV file with columns run, step, seconds, loss, l2_error.

    A run's name is PROBLEM/METHOD/….
    """
    curves: dict[str, Curve] = {}
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            if not set(COLUMNS) <= set(reader.fieldnames or ()):
                raise InputError(f"{path} needs the columns {', '.join(COLUMNS)}")
            for row in reader:
                problem, _, name = row["run"].partition("/")
                curve = curves.setdefault(row["run"], Curve(problem, name, [], [], [], []))
                curve.step.append(float(row["step"]))
                curve.seconds.append(float(row["seconds"]))
                curve.loss.append(float(row["loss"]))
                curve.error.append(float(row["l2_error"]))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError, UnicodeDecodeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is no table of curves: {error}") from error
    return list(curves.values())


def _run_folders(path: Path) -> list[Path]:
    found = []
    for folder, inside, files in os.walk(path):
        inside.sort()
        if records.CONFIG in files:
            found.append(Path(folder))
            inside.clear()  # what a run holds is no run
    return found


def _names(folders: Sequence[Path]) -> list[str]:
    """The last parts of the folders' paths, as many as tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for count in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(p[-count:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def _read(folder: Path, name: str) -> Run:
    config = flatten(records.read_config(folder))
    history = records.read_history(folder)
    if not history:
        raise InputError("it has no records yet")
    summary: dict[str, Any] = {}
    if (folder / records.SUMMARY).exists():
        summary = records.read_summary(folder)
    problem = str(config.get("problem.name", "unknown problem"))
    error = "l2_error" if "l2_error" in history[0] else "validation_loss"
    curve = Curve(
        problem,
        name,
        _column(history, "step"),
        _column(history, "seconds"),
        _column(history, "loss"),
        _column(history, error),
        _column(history, "effective_dimension"),
    )
    return Run(folder, name, config, summary, curve, str(summary.get("status", "unfinished")))


def _column(history: Sequence[Mapping[str, float]], key: str) -> list[float]:
    if not any(key in record for record in history):
        return []
    return [float(record.get(key, math.nan)) for record in history]


def _is_shown(key: str, value: Any) -> bool:
    return key.startswith("optimizer.") and key not in HIDDEN and value not in ("none", None)
