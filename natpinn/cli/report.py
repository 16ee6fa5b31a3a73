"""The commands natpinn report and natpinn plot."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ..files import check_output
from ..training.signals import say
from .options import JsonFlag
from .output import show

RunsArgument = Annotated[
    list[Path], typer.Argument(help="Run folders, or folders that hold some.", metavar="RUNS…")
]
PublishedOption = Annotated[
    Path | None,
    typer.Option(help="A CSV of other curves (run,step,seconds,loss,l2), drawn dashed."),
]


def report_command(
    folders: RunsArgument,
    out: Annotated[str, typer.Option("--out", "-o", help="The page.")] = "report.html",
    published: PublishedOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Write one page with tables, curves and pictures of runs; it works without a network.

    Runs of different problems get sections of their own.

    \b
    natpinn report runs -o report.html
    natpinn report runs/poisson_5d --published docs/results/curves.csv
    """
    from ..report.html import write_report
    from ..report.runs import read_curves, read_runs

    page = check_output(out)  # before the work
    runs, left_out = read_runs(folders)
    write_report(runs, page, read_curves(published) if published else (), left_out)
    _tell(left_out)
    if as_json:
        print(json.dumps({"path": str(out), "runs": len(runs), "left_out": left_out}, indent=2))
    else:
        show(f"{out} has {len(runs)} {'run' if len(runs) == 1 else 'runs'}")


def plot_command(
    folders: RunsArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of the figures.")] = Path(
        "figures"
    ),
    formats: Annotated[str, typer.Option("--format", help="pdf, png, svg.")] = "pdf,png",
    published: PublishedOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Draw the error and the loss of runs over time and steps, as figures for print.

    \b
    natpinn plot runs -o figures --format pdf
    """
    from ..report.curves import draw_curves
    from ..report.runs import read_curves, read_runs

    runs, left_out = read_runs(folders)
    curves = read_curves(published) if published else ()
    written = draw_curves(runs, out, [f.strip() for f in formats.split(",")], curves)
    _tell(left_out)
    if as_json:
        print(json.dumps({"figures": list(map(str, written)), "left_out": left_out}, indent=2))
    else:
        show("\n".join(map(str, written)))


def _tell(left_out: list[str]) -> None:
    for reason in left_out:
        say(f"natpinn: warning: left out {reason}")
