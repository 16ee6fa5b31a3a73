"""The commands natpinn experiment run | status | tune."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ..errors import InputError
from ..training.signals import STOPPED, say
from .bench import print_nystrom
from .options import JsonFlag
from .output import show, show_table

if TYPE_CHECKING:
    from ..search.experiment import Planned, State

experiment_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
FileArgument = Annotated[
    Path, typer.Argument(help="A TOML file, as in experiments/.", metavar="FILE")
]
OutOption = Annotated[Path, typer.Option(help="Runs go to OUT/EXPERIMENT/METHOD-SEED.")]
ScaleOption = Annotated[
    float, typer.Option("--budget-scale", help="What the file's budget is multiplied with.")
]
SeedsOption = Annotated[
    int | None, typer.Option(min=1, help="So many seeds, from 0 (default: those of the file).")
]


@experiment_app.callback()
def experiment() -> None:
    """Run the experiments of a file, see how far they are, tune their methods."""


@experiment_app.command("run")
def experiment_run(
    file: FileArgument,
    scale: ScaleOption = 1.0,
    seeds: SeedsOption = None,
    methods: Annotated[
        list[str] | None, typer.Option("--method", help="Only this method; may be repeated.")
    ] = None,
    out: OutOption = Path("runs"),
    as_json: JsonFlag = False,
) -> None:
    """Run what is missing of an experiment; what is done is not run again.

    Runs that were cut short, or had a smaller budget, go on from their checkpoint.

    \b
    natpinn experiment run experiments/poisson_5d.toml --budget-scale 0.01
    natpinn experiment run experiments/heat_4d.toml --seeds 3 --method spring
    """
    from ..search import experiment as experiments

    read = experiments.read(file)
    if read.nystrom is not None:
        if seeds or methods:
            raise InputError(f"{file} compares sketches: it has no seeds and no methods")
        found = experiments.compare_sketches(read, out, scale)
        print(json.dumps(found, indent=2)) if as_json else print_nystrom(read.title, found)
        return
    planned = experiments.plan(read, out, scale, _seeds(seeds), methods or ())
    done: "list[tuple[Planned, State]]" = []
    for one, state in experiments.run_all(planned, progress=True):
        done.append((one, state))
        say(f"{len(done)} of {len(planned)}: {one.folder}: {_words(state)}")
    _show(read.title, done, as_json)
    if len(done) < len(planned) or any(state.name == "unfinished" for _, state in done):
        raise typer.Exit(STOPPED)
    if any(state.name in ("failed", "outdated") for _, state in done):
        raise typer.Exit(1)


@experiment_app.command("status")
def experiment_status(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="TOML files (default: all in experiments/).", metavar="FILE"),
    ] = None,
    scale: ScaleOption = 1.0,
    seeds: SeedsOption = None,
    out: OutOption = Path("runs"),
    as_json: JsonFlag = False,
) -> None:
    """List the runs of experiments: missing, unfinished, running, finished or diverged.

    \b
    natpinn experiment status experiments/poisson_5d.toml
    """
    from ..search import experiment as experiments

    found = files or sorted(Path("experiments").glob("*.toml"))
    if not found:
        raise InputError("there are no files in experiments/: name one")
    results = []
    for file in found:
        read = experiments.read(file)
        if read.nystrom is not None:
            state = experiments.sketches_state(read, out).name
            results.append({"experiment": read.name, "state": state})
            if not as_json:
                show(f"{read.title}: {state}")
            continue
        runs = [(one, one.state()) for one in experiments.plan(read, out, scale, _seeds(seeds))]
        results += [_row(one, state) for one, state in runs]
        if not as_json:
            _show(read.title, runs, as_json)
    if as_json:
        print(json.dumps(results, indent=2))


@experiment_app.command("tune")
def experiment_tune(
    file: FileArgument,
    method: Annotated[str, typer.Argument(help="A method of the file.", metavar="METHOD")],
    scale: ScaleOption = 1.0,
    trials: Annotated[int, typer.Option(help="Trials over the whole space.")] = 50,
    refine: Annotated[
        int | None, typer.Option(help="Trials after that, around the best [as many].")
    ] = None,
    sampler: Annotated[str, typer.Option(help="random or tpe.")] = "random",
    out: Annotated[Path, typer.Option(help="The study goes to OUT/EXPERIMENT-METHOD.")] = Path(
        "studies"
    ),
    storage: Annotated[str | None, typer.Option(help="A database, as Optuna's URLs.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Look for the settings of a method, in the space that the file gives.

    \b
    natpinn experiment tune experiments/heat_4d_fixed.toml spring --budget-scale 0.01
    """
    from ..search import experiment as experiments
    from ..search import tuning
    from .findings import finish, report

    read = experiments.read(file)
    search = read.search_for(
        method,
        scale * read.budget,
        trials=trials,
        refine=trials if refine is None else refine,
        sampler=sampler,
    )
    bench = tuning.open_study(search, out=out / f"{read.name}-{method}", storage=storage)
    finish(tuning.work(bench, report), as_json)


def _seeds(count: int | None) -> range | None:
    return None if count is None else range(count)


def _row(one: "Planned", state: "State") -> dict[str, object]:
    return {
        "experiment": one.folder.parent.name,
        "method": one.method,
        "seed": one.seed,
        "state": state.name,
        "seconds": state.seconds,
        "budget": one.budget,
        "l2": state.l2,
        "message": state.message,
        "folder": str(one.folder),
    }


def _show(title: str, runs: "list[tuple[Planned, State]]", as_json: bool) -> None:
    if as_json:
        print(json.dumps([_row(one, state) for one, state in runs], indent=2))
        return
    table = Table("method", "seed", "state", "seconds", "L2 error", title=title)
    for one, state in runs:
        error = "" if state.l2 is None else f"{state.l2:.3e}"
        seconds = f"{state.seconds:.3g} of {one.budget:.3g}"
        table.add_row(one.method, str(one.seed), state.name, seconds, error)
    show_table(table)


def _words(state: "State") -> str:
    error = "" if state.l2 is None else f", L2 error {state.l2:.3e}"
    return f"{state.name}{error}{': ' if state.message else ''}{state.message}"
