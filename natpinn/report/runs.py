"""Run folders, read for tables and figures; those that cannot be read are listed."""

import csv
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import read_named
from ..problems.names import label
from ..runs.names import OPTIMIZERS
from ..runs.records import (
    CONFIG,
    SUMMARY,
    command,
    finite,
    is_count,
    read_config,
    read_history,
    read_summary,
)
from ..runs.settings import flatten
from ..training.record import RENAMED

SHORT, LONGEST = 200, 1000  # letters: of what a message cites, and of a name or a setting
ERRORS = (1e-3, 1e-4, 1e-5, 1e-6)  # the time to each of them is shown
COLUMNS = ("run", "step", "seconds", "loss", "l2")  # of a file of published curves
STATUSES = ("finished", "interrupted", "diverged", "unfinished")
NOT_OF_METHODS = ("seed", "train.", "compute.", "checkpoint.", "track.", "format")


@dataclass(frozen=True)
class Curve:
    """A loss and an error over steps and seconds, of a run or published.

    - `problem`: what was solved, with its dimension.
    - `name`: of the run among those of this problem.
    - `step`, `seconds`, `loss`, `error`: one number for each evaluation; NaN where there is none.
    - `effective_dimension`: likewise, or empty where it was not tracked.
    """

    problem: str
    name: str
    step: list[float]
    seconds: list[float]
    loss: list[float]
    error: list[float]
    effective_dimension: list[float] = field(default_factory=list)

    @property
    def optimizer(self) -> str:
        """The optimizer that the name begins with, as in METHOD/… or EXPERIMENT/METHOD-SEED."""
        parts = [part.partition("-")[0] for part in self.name.split("/")]
        return next((part for part in parts if part in OPTIMIZERS), parts[0])

    def seconds_to(self, error: float) -> float | None:
        """When an error was first reached."""
        pairs = zip(self.seconds, self.error, strict=True)
        return next((seconds for seconds, found in pairs if found <= error), None)


@dataclass(frozen=True)
class Run:
    """What one run folder records.

    - `folder`: where it is.
    - `name`: a name of its own among the runs that were read with it.
    - `method`: the same for runs that differ in their seed only.
    - `config`: its settings, with dotted keys.
    - `summary`: its outcome; empty where the run has not ended.
    - `curve`: its loss and error over steps and seconds.
    - `status`: "finished", "interrupted", "diverged" or "unfinished".
    - `criterion`: what its errors are, "L2 error" or "validation loss".
    - `returned`: the error of the evaluation with the smallest validation loss; None where no such
      loss is recorded.
    """

    folder: Path
    name: str
    method: str
    config: dict[str, Any]
    summary: dict[str, Any]
    curve: Curve
    status: str
    criterion: str
    returned: float | None = None

    @property
    def problem(self) -> str:
        """What was solved, with its dimension."""
        return self.curve.problem

    @property
    def seed(self) -> int:
        """The seed of weights and points."""
        return int(self.config.get("seed", 0))

    @property
    def points(self) -> int:
        """The number of points of a step, of all conditions."""
        return sum(int(v) for k, v in self.config.items() if k.startswith("points."))

    @property
    def error(self) -> float | None:
        """The error of the parameters that the run returned, or would return now.

        They are those of the smallest validation loss. Runs of earlier versions, of which none is
        recorded, returned those of the smallest error.
        """
        return self.best if self.returned is None else self.returned

    @property
    def best(self) -> float | None:
        """The smallest error of all evaluations."""
        return min((e for e in self.curve.error if math.isfinite(e)), default=None)

    @property
    def final(self) -> float | None:
        """The error of the last evaluation."""
        return self.curve.error[-1] if self.curve.error else None

    @property
    def steps_per_second(self) -> float | None:
        """The mean speed of training."""
        seconds = self.curve.seconds[-1] if self.curve.seconds else 0.0
        return self.curve.step[-1] / seconds if seconds else None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the optimizer."""
        own = {k: v for k, v in self.config.items() if k.startswith("optimizer.") and v != "none"}
        return {k.removeprefix("optimizer."): v for k, v in own.items() if k != "optimizer.name"}

    @property
    def command(self) -> str:
        """The command that runs it again, or how to, where that needs objects of the user's own."""
        model = str(self.config.get("model.name", "mlp"))
        has_own_model = model != "mlp" and ":" not in model
        has_own_optimizer = self.config.get("optimizer.name") not in OPTIMIZERS
        if self.config.get("problem.own") or has_own_model or has_own_optimizer:
            return "from Python, with the objects that it was run with"
        return command(self.folder / CONFIG, self.config)


def read_runs(paths: Sequence[Path | str]) -> tuple[list[Run], list[str]]:
    """Read all runs in some folders, at any depth.

    **Arguments:** `paths`, run folders, or folders that hold some.

    **Returns:** the runs, and a line for each that was left out, with the reason.

    **Raises:** `InputError` where a folder is not there, or where there is no run at all.

        import natpinn

        natpinn.solve("poisson_2d", steps=3, out="runs/first", progress=False)
        runs, left_out = natpinn.read_runs(["runs"])
        print(runs[0].method, runs[0].best, runs[0].curve.seconds)
    """
    folders, left_out, runs = [], [], []
    for path in map(Path, paths):
        if not os.path.exists(path):
            raise InputError(f"{path} is not there: name run folders, or folders that hold some")
        folders += _run_folders(path, left_out)
    folders = list(dict.fromkeys(folders))
    for folder, name in zip(folders, _names(folders), strict=True):
        try:
            runs.append(_read(folder, name))
        except InputError as error:
            left_out.append(f"{folder}: {error}")
        except Exception as error:  # anything can be in a folder
            left_out.append(f"{folder}: its records are damaged: {str(error)[:SHORT]}")
    if not runs:
        why = f" ({left_out[0]})" if left_out else ""
        raise InputError(f"no run was found in {', '.join(map(str, paths))}{why}")
    return _with_methods(runs), left_out


def by_problem(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs of different problems are never compared; those of one are ordered by their error."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.problem, []).append(run)
    order = {name: sorted(group, key=_by_error) for name, group in groups.items()}
    return dict(sorted(order.items()))


def _by_error(run: Run) -> float:
    return math.inf if run.error is None else run.error


def _with_methods(runs: Sequence[Run]) -> list[Run]:
    """Runs of equal settings but for the seed have one method, named after the first of them."""
    names: dict[str, str] = {}
    for run in runs:
        names.setdefault(_settings_of(run), re.sub(r"-\d+$", "", run.name))
    taken = Counter(names.values())
    first = {key: run.name for run in reversed(runs) for key in [_settings_of(run)]}
    unique = {key: first[key] if taken[name] > 1 else name for key, name in names.items()}
    return [replace(run, method=unique[_settings_of(run)]) for run in runs]


def _settings_of(run: Run) -> str:
    kept = {k: v for k, v in run.config.items() if not k.startswith(NOT_OF_METHODS)}
    return repr(sorted(kept.items()))


def read_curves(path: Path | str) -> list[Curve]:
    """Read curves from a CSV file, as those that were published.

    **Arguments:** `path`, a file with the columns run, step, seconds, loss and l2 (or l2_error).
    The name of a run is PROBLEM/METHOD/….

    **Returns:** the curves, in the order of the file.

    **Raises:** `InputError` where the file cannot be read, or has other columns.

        from pathlib import Path

        import natpinn

        lines = ["run,step,seconds,loss,l2", "poisson_5d/spring,1,0.5,2.0,1e-3"]
        Path("curves.csv").write_text("\\n".join(lines))
        (curve,) = natpinn.read_curves("curves.csv")
        print(curve.seconds_to(1e-2))
    """
    curves: dict[str, Curve] = {}
    try:
        reader = csv.DictReader(read_named(path).splitlines())
        reader.fieldnames = [RENAMED.get(n, n) for n in reader.fieldnames or ()]
        if not set(COLUMNS) <= set(reader.fieldnames):
            raise InputError(f"{path} needs the columns {', '.join(COLUMNS)}")
        for row in reader:
            problem, _, name = row["run"].partition("/")
            curve = curves.setdefault(row["run"], Curve(problem, name, [], [], [], []))
            for column, key in zip(
                (curve.step, curve.seconds, curve.loss, curve.error), COLUMNS[1:], strict=True
            ):
                column.append(float(row[key]) if row[key] else math.nan)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except InputError:
        raise
    except (ValueError, TypeError, csv.Error) as error:
        raise InputError(f"{path} is no table of curves: {str(error)[:SHORT]}") from error
    return list(curves.values())


def _run_folders(path: Path, left_out: list[str]) -> list[Path]:
    """The run folders at and below a path; what may not be opened is left out."""
    found = []

    def refuse(error: OSError) -> None:
        left_out.append(f"{error.filename}: {error.strerror}")

    for folder, inside, files in os.walk(path, onerror=refuse):
        inside.sort()
        if CONFIG in files:
            found.append(Path(folder))
            inside.clear()  # folders inside a run are no runs
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
    config = flatten(read_config(folder))
    history = read_history(folder)
    if not history:
        raise InputError("it has no records yet")
    summary: dict[str, Any] = {}
    if (folder / SUMMARY).exists():
        summary = read_summary(folder)
    has_l2 = "l2" in history[0]
    error = "l2" if has_l2 else "validation_loss"
    name_of_problem = str(config.get("problem.name", "unknown problem"))
    problem = label(name_of_problem, config.get("problem.dimension"))
    status = str(summary.get("status", "unfinished"))
    curve = Curve(
        problem,
        name,
        _column(history, "step"),
        _column(history, "seconds"),
        _column(history, "loss"),
        _column(history, error),
        _column(history, "effective_dimension"),
    )
    found = Run(
        folder,
        name,
        name,
        config,
        summary,
        curve,
        status if status in STATUSES else "unfinished",
        "L2 error" if has_l2 else "validation loss",
        _returned(history, summary, error),
    )
    if len(curve.error) != len(history) or len(curve.seconds) != len(history):
        raise InputError(f"its records have no {error} or no seconds")
    counts = {k: v for k, v in config.items() if k == "seed" or k.startswith("points.")}
    for key, value in counts.items():
        if not is_count(value):
            raise InputError(f"its {key} is {str(value)[:SHORT]}")
    for key in ("problem.name", "optimizer.name", "model.name"):
        if not isinstance(config.get(key, ""), str):
            raise InputError(f"its {key} is no text")
    for what in (problem, name, *map(str, config.values())):
        if len(what) > LONGEST:
            raise InputError(f"one of its names or settings has {len(what):,} letters")
    return found


def _returned(
    history: Sequence[Mapping[str, float]], summary: Mapping[str, Any], error: str
) -> float | None:
    """The error of what a run has returned, or of its smallest validation loss so far."""
    if (told := finite(summary.get(error))) is not None:
        return told
    known = [
        (record["validation_loss"], float(record.get(error, math.nan)))
        for record in history
        if math.isfinite(record.get("validation_loss", math.nan))
    ]
    return min(known)[1] if known else None


def _column(history: Sequence[Mapping[str, float]], key: str) -> list[float]:
    if not any(key in record for record in history):
        return []
    return [float(record.get(key, math.nan)) for record in history]
