"""The command line: natpinn list | solve | resume | report | plot | tune | experiment | bench."""

import contextlib
import itertools
import json
import os
import shlex
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import tomli_w
import typer
from rich.console import Console
from rich.table import Column, Table

from . import __version__, cluster, records
from . import config as configuration
from .cli_bench import JsonFlag, bench_app
from .cli_experiment import experiment_app
from .cli_report import plot_command, report_command
from .cli_tune import tune_command
from .errors import InputError, NatpinnWarning
from .problems import CATALOGUE
from .resources import describe as describe_plan
from .resources import explain as explain_plan
from .resume import resume as resume_run
from .run import assemble, model_key, plan, run
from .settings import parse_setting, read_file, without_dependants
from .signals import STOPPED, Interrupts, say
from .solution import Solution, section

app = typer.Typer(
    name="natpinn",
    help="Solve PDEs with neural networks trained by natural gradients.",
    epilog="Start with:  natpinn solve poisson_2d --budget 10",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

DEBUG = "NATPINN_DEBUG"  # the environment variable that shows tracebacks


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"natpinn {__version__}")
        raise typer.Exit


@app.callback()
def natpinn(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Solve PDEs with neural networks trained by natural gradients."""


@app.command("list")
def list_names(as_json: JsonFlag = False) -> None:
    """List the problems and the optimizers, with their settings and defaults."""
    if as_json:
        print(json.dumps(_names(), indent=2, ensure_ascii=False))
        return
    console = Console()
    rest = ("equation", "net", "points per step")
    problems = Table(Column("problem", no_wrap=True), *rest, title="Problems")
    for name, entry in CATALOGUE.items():
        net = "-".join(map(str, entry.widths))
        points = " + ".join(f"{n} {key}" for key, n in entry.points.items())
        problems.add_row(name, entry.description, net, points)
    rest = ("what it is", "settings and defaults")
    optimizers = Table(Column("optimizer", no_wrap=True), *rest, title="Optimizers")
    for name, build in configuration.OPTIMIZERS.items():
        defaults = configuration.optimizer_defaults(name)
        settings = "\n".join(f"{key} = {value}" for key, value in defaults.items())
        optimizers.add_row(name, (build.__doc__ or "").split("\n")[0], settings)
    console.print(problems)
    console.print(optimizers)
    console.print("Your own problem: natpinn solve module:attribute (a Problem of your own file).")


@app.command()
def solve(
    problem: Annotated[
        str | None,
        typer.Argument(help="A name from `natpinn list`, or module:attribute for your own."),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(help="By default auto; a name from `natpinn list` takes its best settings."),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Stop after so many steps.")] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="Stop after so many seconds of training (60 if nothing is said)."),
    ] = None,
    stop_at: Annotated[
        float | None, typer.Option(help="Stop at this L2 error, or validation loss.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights and points.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting, as in optimizer.damping=1e-6."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file of settings, such as a run's config.toml.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder (by default a new one under runs/).")
    ] = None,
    devices: Annotated[
        str | None, typer.Option(help='How many devices to use, or "all", of all processes.')
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(help="Of each device, as in 8GB (by default what it has free)."),
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(help="Record effective_dimension, condition_number, largest_eigenvalue, …"),
    ] = None,
    trackers: Annotated[
        list[str] | None,
        typer.Option("--tracker", help="Send the records to wandb or tensorboard too."),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Print how a step is computed, and its memory; run nothing."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the settings, run nothing.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Solve a problem and write a run folder: settings, metrics, parameters, a picture.

    \b
    natpinn solve poisson_2d --budget 10
    natpinn solve poisson_5d --optimizer spring --set points.interior=300
    natpinn solve heat_4d --set problem.dimension=10 --dry-run
    natpinn solve heat_4d --memory-limit 2GB --explain
    natpinn solve poisson_10d --devices all
    natpinn solve poisson_2d --track effective_dimension
    """
    flags = {
        "problem.name": problem,
        "optimizer.name": optimizer,
        "train.steps": steps,
        "train.budget": budget,
        "train.stop_at": stop_at,
        "seed": seed,
        "compute.devices": _device_count(devices),
        "compute.memory_limit": memory_limit,
        "track.quantities": track,
        "track.trackers": trackers,
    }
    flags = {key: value for key, value in flags.items() if value is not None}
    flags |= dict(map(parse_setting, settings or []))
    base = {} if config is None else read_file(config)
    _refuse_code(base, flags, config)
    if (base | flags).get("compute.devices") == "all":
        cluster.join()  # before anything is computed
    resolved = configuration.resolve(without_dependants(base, flags) | flags)
    if out is not None and cluster.is_first():
        records.check_free(out)
    parts = assemble(resolved)
    if dry_run:
        text = parts.described
        print(json.dumps(text, indent=2) if as_json else tomli_w.dumps(text).rstrip())
        return
    if explain:
        planned = plan(parts, always_compile=True)
        print(json.dumps(describe_plan(planned), indent=2) if as_json else explain_plan(planned))
        return
    with _claimed(out, resolved) as folder:
        solution = run(parts, folder, progress=True)
    _finish(solution, as_json)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The run folder.", metavar="RUN")],
    steps: Annotated[
        int | None, typer.Option(help="Stop after so many steps, those of before included.")
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="Stop after so many seconds of training, those of before included."),
    ] = None,
    stop_at: Annotated[
        float | None, typer.Option(help="Stop at this L2 error, or validation loss.")
    ] = None,
    problem: Annotated[
        str | None, typer.Option(help="module:attribute, if the run solves a problem of your own.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="module:attribute, if the run trains a model of your own.")
    ] = None,
    devices: Annotated[
        str | None, typer.Option(help='Other devices than before: how many, or "all".')
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="Another limit than before, as in 8GB.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Go on with a run from its last checkpoint, as if it had never stopped.

    Limits are those of the whole run; without any, the run's own hold. Code of your own is never
    run because a folder names it: say it again with --problem and --model.

    \b
    natpinn resume runs/poisson_5d-spring-1
    natpinn resume runs/poisson_5d-spring-1 --budget 600
    """
    described = records.read_config(folder)
    if "all" in (devices, section(described, "compute").get("devices")):
        cluster.join()
    built = None if problem is None else configuration.lookup_problem(problem)
    made = None
    if model is not None:
        made = configuration.make_model(model, model_key(configuration.seed_of(described)))
    solution = resume_run(
        folder,
        built,
        made,
        steps=steps,
        budget=budget,
        stop_at=stop_at,
        devices=_device_count(devices),
        memory_limit=memory_limit,
    )
    _finish(solution, as_json)


app.command("report")(report_command)
app.command("plot")(plot_command)
app.command("tune")(tune_command)
app.add_typer(experiment_app, name="experiment")
app.add_typer(bench_app, name="bench")


def main() -> None:
    """The entry point: errors are one line on stderr, with exit code 2."""
    warnings.showwarning = _show_warning
    Interrupts.exits_at_once = True
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
        if isinstance(code, int) and code:  # of typer.Exit
            sys.exit(code)
    except InputError as error:
        _fail(str(error))
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(STOPPED)
    except (RuntimeError, MemoryError, OSError) as error:  # JAX found no device, a disk is gone
        _fail(str(error).strip().split("\n")[0] or type(error).__name__)
    except Exception as error:
        if hasattr(error, "format_message"):
            message = error.format_message()  # pyright: ignore  # a usage error of click
            if type(error).__name__ != "NoArgsIsHelpError":
                _fail(message)
            print(message)
        elif DEBUG in os.environ:
            raise
        else:
            what = str(error).strip().split("\n")[0]
            _fail(f"unexpected {type(error).__name__}: {what} (set {DEBUG}=1 to see where)")
    finally:
        Interrupts.exits_at_once = False


def _show_warning(message: Any, category: Any, *_: Any) -> None:
    """Warnings of natpinn for people; those of libraries are for developers."""
    if issubclass(category, NatpinnWarning):
        say(f"natpinn: warning: {message}")


def _refuse_code(base: dict[str, Any], flags: dict[str, Any], path: Path | None) -> None:
    """Code is run because the command line names it, never because a file does."""
    for kind, said in (("problem", "as natpinn solve {}"), ("model", "as --set model.name={}")):
        name = base.get(f"{kind}.name")
        if ":" in str(name) and f"{kind}.name" not in flags:
            raise InputError(
                f"{path} names {kind} code of your own ({name}), which a file may not run: say it "
                f"on the command line too, {said.format(name)}"
            )


def _device_count(text: str | None) -> int | str | None:
    """A number of devices, or a word for them, as settings have it."""
    return int(text) if text and text.isdecimal() else text


def _finish(solution: Solution, as_json: bool) -> None:
    """Print how a run went, and exit as a shell expects."""
    if not cluster.is_first():
        return
    if as_json:
        print(records.summary_text(solution.summary), end="")
    else:
        _print_outcome(solution)
    if solution.summary["status"] == "interrupted":
        raise typer.Exit(STOPPED)
    if solution.folder is None:  # as a warning has said
        raise typer.Exit(1)


def _fail(message: str) -> None:
    print(f"natpinn: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def _names() -> dict[str, Any]:
    problems = {
        name: {
            "description": entry.description,
            "dimension": entry.dimension,
            "widths": entry.widths,
            "points": entry.points,
        }
        for name, entry in CATALOGUE.items()
    }
    optimizers = {n: configuration.optimizer_defaults(n) for n in configuration.OPTIMIZERS}
    return {"problems": problems, "optimizers": optimizers}


@contextlib.contextmanager
def _claimed(out: Path | None, config: configuration.Config) -> Iterator[Path]:
    """A folder that is named, or runs/PROBLEM-OPTIMIZER-N with the first N that is free.

    It is made at once, since other commands may look for one; it does not stay if nothing is in it.
    """
    stem = f"{config.problem.name.replace(':', '.')}-{config.optimizer['name']}"
    folders = (Path("runs") / f"{stem}-{number}" for number in itertools.count(1))
    if out is not None or not cluster.is_first():
        yield out or next(folders)
        return
    folder = next(filter(_make, folders))
    try:
        yield folder
    except BaseException:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise


def _make(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from error
    return True


def _print_outcome(solution: Solution) -> None:
    summary, folder = solution.summary, solution.folder
    steps, seconds = summary["steps"], summary["seconds"]
    print(f"{summary['status']}: {steps:,} steps in {seconds:.1f} s on {summary['device']}")
    if summary["message"]:
        print(f"  {summary['message']}")
    for what in ("rejected", "recovered"):
        if summary[f"{what}_steps"]:
            print(f"  {what}   {summary[f'{what}_steps']:,} steps")
    if summary["best_l2"] is not None:
        best, relative = summary["best_l2"], summary["best_relative_l2"]
        print(f"  L2 error   {best:.3e}   relative {relative:.3e}")
    elif summary["best_loss"] is not None:
        print(f"  validation loss   {summary['best_loss']:.3e}")
    if folder is None:
        return
    print(f"  picture    {folder / records.PICTURE}")
    print(f"  run folder {folder}")
    if summary["status"] == "interrupted":
        print(f"go on with: natpinn resume {shlex.quote(str(folder))}{_own_code(solution.config)}")


def _own_code(config: dict[str, Any]) -> str:
    """The flags that name code of the user's own."""
    names = {kind: config[kind]["name"] for kind in ("problem", "model")}
    return "".join(f" --{kind} {name}" for kind, name in names.items() if ":" in name)
