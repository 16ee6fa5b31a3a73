"""The command natpinn resume."""

from pathlib import Path
from typing import Annotated

import typer

from .options import JsonFlag, device_count


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
    trackers: Annotated[
        list[str] | None,
        typer.Option("--tracker", help="wandb, if the run sends its records there; said again."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Go on with a run from its last checkpoint, as if it had never stopped.

    Limits are those of the whole run; without any, the run's own hold. Code of your own is never
    run because a folder names it, and no other host is contacted: say them again with --problem,
    --model and --tracker.

    \b
    natpinn resume runs/poisson_5d-spring-1
    natpinn resume runs/poisson_5d-spring-1 --budget 600
    """
    from ..parallel import processes as cluster
    from ..runs.recorded import Recorded
    from ..runs.resume import resume as resume_run
    from .outcome import finish

    if "all" in (devices, Recorded.read(folder).table("compute").get("devices")):
        cluster.join()  # before anything is computed
    solution = resume_run(
        folder,
        problem,
        model,
        steps=steps,
        budget=budget,
        stop_at=stop_at,
        devices=device_count(devices),
        memory_limit=memory_limit,
        trackers=trackers or (),
    )
    finish(solution, as_json)
