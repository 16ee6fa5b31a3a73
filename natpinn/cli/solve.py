"""The command natpinn solve."""

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError
from ..runs.settings import parse_setting, read_file, without_dependants
from .options import JsonFlag, device_count

if TYPE_CHECKING:
    from ..runs.parts import Parts


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
    precision: Annotated[
        str | None, typer.Option(help="float64 (the default), or float32 where 64 bits are slow.")
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
    from ..parallel import processes as cluster
    from ..runs.folder import check_free
    from ..runs.parts import assemble
    from ..runs.resolve import resolve
    from ..runs.run import run
    from .outcome import finish, print_plan, print_settings

    flags = {
        "problem.name": problem,
        "optimizer.name": optimizer,
        "train.steps": steps,
        "train.budget": budget,
        "train.stop_at": stop_at,
        "seed": seed,
        "compute.devices": device_count(devices),
        "compute.memory_limit": memory_limit,
        "compute.precision": precision,
        "track.quantities": track,
        "track.trackers": trackers,
    }
    flags = {key: value for key, value in flags.items() if value is not None}
    flags |= dict(map(parse_setting, settings or []))
    base = {} if config is None else read_file(config)
    _refuse_code(base, flags, config)
    _refuse_hosts(base, flags, config)
    if (base | flags).get("compute.devices") == "all":
        cluster.join()  # before anything is computed
    resolved = resolve(without_dependants(base, flags) | flags)
    if out is not None and cluster.is_first():
        check_free(out)
    parts = assemble(resolved)
    if dry_run:
        print_settings(parts, as_json)
        return
    if explain:
        print_plan(parts, as_json)
        return
    with _claimed(out, parts) as folder:
        solution = run(parts, folder, progress=True)
    finish(solution, as_json)


def _refuse_code(base: dict[str, Any], flags: dict[str, Any], path: Path | None) -> None:
    """Check that code is named on the command line: a file alone never makes natpinn run it."""
    for kind, said in (("problem", "as natpinn solve {}"), ("model", "as --set model.name={}")):
        name = base.get(f"{kind}.name")
        if ":" in str(name) and f"{kind}.name" not in flags:
            raise InputError(
                f"{path} names {kind} code of your own ({name}), which a file may not run: say it "
                f"on the command line too, {said.format(name)}"
            )


def _refuse_hosts(base: dict[str, Any], flags: dict[str, Any], path: Path | None) -> None:
    """Check that trackers on other hosts are named on the command line, or in the environment."""
    from ..runs.trackers import ENVIRONMENT, unsaid

    listed = [] if "track.trackers" in flags else unsaid(base.get("track.trackers"))
    if listed:
        raise InputError(
            f"{path} names the tracker {listed[0]}, which natpinn does not contact because a file "
            f"names it: say --tracker {listed[0]}, or set {ENVIRONMENT}={listed[0]}"
        )


@contextlib.contextmanager
def _claimed(out: Path | None, parts: "Parts") -> Iterator[Path]:
    """A folder that is named, or runs/PROBLEM-OPTIMIZER-N with the first N that is free.

    It is created at once, since other commands may look for one at the same time, and removed again
    after an error if nothing is in it.
    """
    from ..parallel import processes as cluster

    config = parts.config
    name = parts.problem.label if parts.problem.is_catalogued else config.problem.name
    stem = f"{name.replace(':', '.')}-{config.optimizer['name']}"
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
    except FileExistsError as error:
        if os.path.lexists(folder):
            return False
        raise InputError(f"cannot write to {folder}: {error.strerror}") from error
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from error
    return True
