"""The command natpinn tune."""

import json
import math
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..errors import InputError
from ..runs.records import command
from ..runs.settings import parse_setting
from ..search import spaces, tuning
from ..search.study import Study, Trial
from ..training.signals import STOPPED, say
from .options import JsonFlag

SHOWN = 10  # trials of the table at the end


def tune_command(
    problem: Annotated[
        str,
        typer.Argument(
            help="A problem, or the folder of a study to go on with or help with.",
            metavar="PROBLEM",
        ),
    ],
    optimizer: Annotated[
        str | None, typer.Option(help="The optimizer whose settings are looked for [spring].")
    ] = None,
    space: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=KIND:VALUE:VALUE",
            help="Where to look: uniform, log_uniform or choice (default: wide).",
        ),
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Trials over the whole space [50].")] = None,
    refine: Annotated[
        int | None, typer.Option(help="Trials after that, around the best [as many].")
    ] = None,
    budget: Annotated[float | None, typer.Option(help="Seconds of training for a trial.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of a trial.")] = None,
    sampler: Annotated[str | None, typer.Option(help="random or tpe [random].")] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Cut trials short that are worse than the median.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of the search [0].")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of all trials."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The study's folder [studies/PROBLEM-OPTIMIZER].")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="A database for workers on many machines, as Optuna's URLs.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Look for the best settings of an optimizer: 50 trials everywhere, 50 around the best.

    Start the same command again, or `natpinn tune FOLDER`, in other terminals to share the work,
    and after a crash to go on. Trials are ranked by their final L2 error, or by their validation
    loss where no solution is known.

    \b
    natpinn tune poisson_2d --optimizer spring --budget 5 --trials 20 --refine 10
    natpinn tune poisson_5d --space optimizer.damping=log_uniform:1e-12:1e-3 --sampler tpe
    natpinn tune studies/poisson_2d-spring
    """
    given: dict[str, Any] = {
        "trials": trials,
        "refine": refine,
        "sampler": sampler,
        "prune": prune or None,
        "seed": seed,
    }
    given = {key: value for key, value in given.items() if value is not None}
    if trials is not None:
        given.setdefault("refine", trials)
    if (Path(problem) / tuning.STUDY).exists():
        others = [optimizer, space, budget, steps, settings, out, storage, *given.values()]
        if any(value is not None for value in others):
            raise InputError(
                f"the study in {problem} has its search already: leave out all options"
            )
        bench = tuning.join(Path(problem))
    else:
        if "/" in problem:
            raise InputError(f"{problem} is not a study: there is no {tuning.STUDY} in it")
        search = tuning.plan_search(
            problem,
            optimizer or "spring",
            None if space is None else spaces.parse_texts(space),
            dict(map(parse_setting, settings or [])),
            steps=steps,
            budget=budget,
            **given,
        )
        name = f"{problem.replace(':', '.')}-{search.settings['optimizer.name']}"
        bench = tuning.open_study(search, out=out or Path("studies") / name, storage=storage)
    finish(tuning.work(bench, report), as_json)


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
    table = Table("trial", found.ranked_by, *(name.removeprefix("optimizer.") for name in names))
    for trial in ranked[:SHOWN]:
        error = "pruned" if trial.state == "pruned" else f"{trial.error:.3e}"
        table.add_row(str(trial.number), error, *(_number(trial.params[n]) for n in names))
    Console().print(table)
    folder = shlex.quote(str(found.folder))
    if not found.is_complete:
        running = sum(t.state == "running" for t in found.trials)
        others = f", and {running} running elsewhere" if running else ""
        again = "the same command" if found.has_own_code else f"natpinn tune {folder}"
        print(f"{len(ranked)} trials are done{others}: go on with {again}")
    if found.best is not None:
        best = f"{found.folder}/{tuning.BEST}"
        print(f"run the best with: {command(best, found.settings)}")


def _as_json(found: tuning.Tuned) -> dict[str, Any]:
    def trial(t: Trial) -> dict[str, Any]:
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


def _show(params: dict[str, Any]) -> str:
    return ", ".join(f"{k.removeprefix('optimizer.')} {_number(v)}" for k, v in params.items())


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
