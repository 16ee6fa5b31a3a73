"""What a search has found, printed."""

import json
import math
import shlex
from collections.abc import Mapping

import typer
from rich.table import Table

from ..errors import printable
from ..runs.records import command
from ..search import tuning
from ..search.study import Study, Trial
from ..training.signals import STOPPED, say
from .output import show, show_table

SHOWN = 10  # trials of the table at the end


def finish(found: tuning.Tuned, as_json: bool) -> None:
    """Print what was found, and exit as a shell expects."""
    if as_json:
        print(json.dumps(_as_json(found), indent=2))
    else:
        _print(found)
    if not found.is_complete and found.is_stopped:
        raise typer.Exit(STOPPED)


def report(trial: Trial, study: Study) -> None:
    """One line for a trial that ended."""
    best = study.best
    end = "" if best is None else f"   best {best.error:.2e} ({best.number})"
    done = len(study.finished)
    error = "" if math.isnan(trial.error) else f", {trial.error:.2e}"
    reason = f" ({trial.reason})" if trial.reason else ""
    say(
        f"{done} of {study.search.total}: trial {trial.number} {trial.state}{error}{reason}, "
        f"{_show(trial.params)}{end}"
    )


def _print(found: tuning.Tuned) -> None:
    ranked = sorted(
        (t for t in found.trials if t.state in ("finished", "pruned")),
        key=lambda t: (t.state, t.error),
    )
    names = list(ranked[0].params) if ranked else []
    table = Table("trial", found.ranked_by, *map(_short, names))
    for trial in ranked[:SHOWN]:
        error = "pruned" if trial.state == "pruned" else f"{trial.error:.3e}"
        table.add_row(str(trial.number), error, *(_number(trial.params[n]) for n in names))
    show_table(table)
    folder = shlex.quote(str(found.folder))
    if not found.is_complete:
        running = sum(t.state == "running" for t in found.trials)
        others = f", and {running} running elsewhere" if running else ""
        again = "the same command" if found.has_own_code else f"natpinn tune {folder}"
        show(f"{len(ranked)} trials are done{others}: go on with {again}")
    if found.best is not None:
        best = f"{found.folder}/{tuning.BEST}"
        show(f"run the best with: {command(best, found.settings)}")


def _as_json(found: tuning.Tuned) -> dict[str, object]:
    def trial(t: Trial) -> dict[str, object]:
        error = t.error if math.isfinite(t.error) else None
        return {
            "number": t.number,
            "state": t.state,
            "error": error,
            "reason": t.reason,
            "params": t.params,
        }

    return {
        "ranked_by": found.ranked_by,
        "best": None if found.best is None else trial(found.best),
        "settings": found.settings,
        "is_complete": found.is_complete,
        "trials": [trial(t) for t in found.trials],
        "folder": str(found.folder),
    }


def _show(params: Mapping[str, object]) -> str:
    return ", ".join(f"{k.removeprefix('optimizer.')} {_number(v)}" for k, v in params.items())


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else printable(str(value))


def _short(name: str) -> str:
    return printable(name.removeprefix("optimizer."))
