"""The command natpinn tune."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..runs.settings import parse_setting
from .options import JsonFlag


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
    from ..search import spaces, tuning
    from .findings import finish, report

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
        others = [optimizer, space, budget, steps, settings, out, *given.values()]
        if any(value is not None for value in others):
            raise InputError(
                f"the study in {problem} has its search already: leave out all options, but for "
                f"--storage"
            )
        bench = tuning.join(Path(problem), storage=storage)
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
