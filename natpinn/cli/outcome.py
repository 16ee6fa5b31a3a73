"""How a run will go and how it went, printed."""

import json
import shlex
from typing import Any

import tomli_w
import typer

from ..files import as_json as json_text
from ..parallel import processes as cluster
from ..planning.explain import describe, explain
from ..runs.parts import Parts
from ..runs.records import PICTURE
from ..runs.run import plan
from ..runs.solution import Solution
from ..training.signals import STOPPED
from .output import show


def print_settings(parts: Parts, as_json: bool) -> None:
    """Print everything that a run would be configured with."""
    settings = parts.config.as_dict()
    print(json.dumps(settings, indent=2) if as_json else tomli_w.dumps(settings).rstrip())


def print_plan(parts: Parts, as_json: bool) -> None:
    """Print how a step would be computed, and its memory."""
    planned = plan(parts, always_compile=True)
    known = (planned, parts.worth)
    print(json.dumps(describe(*known), indent=2) if as_json else explain(*known))


def finish(solution: Solution, as_json: bool) -> None:
    """Print how a run went, and exit as a shell expects."""
    if not cluster.is_first():
        return
    if as_json:
        print(json_text(solution.summary, indent=2), end="")
    else:
        _print_outcome(solution)
    if solution.summary["status"] == "interrupted":
        raise typer.Exit(STOPPED)
    if solution.folder is None:  # as a warning has said
        raise typer.Exit(1)


def _print_outcome(solution: Solution) -> None:
    summary, folder = solution.summary, solution.folder
    steps, seconds = summary["steps"], summary["seconds"]
    show(f"{summary['status']}: {steps:,} steps in {seconds:.1f} s on {summary['device']}")
    if summary["message"]:
        show(f"  {summary['message']}")
    for what in ("rejected", "recovered"):
        if summary[f"{what}_steps"]:
            show(f"  {what}   {summary[f'{what}_steps']:,} steps")
    if summary["l2"] is not None:
        show(f"  L2 error   {summary['l2']:.3e}   relative {summary['relative_l2']:.3e}")
    elif summary["validation_loss"] is not None:
        show(f"  validation loss   {summary['validation_loss']:.3e}")
    if folder is None:
        return
    show(f"  picture    {folder / PICTURE}")
    show(f"  run folder {folder}")
    if summary["status"] == "interrupted":
        show(f"go on with: natpinn resume {shlex.quote(str(folder))}{_own_code(solution.config)}")


def _own_code(config: dict[str, Any]) -> str:
    """The flags that name code of the user's own."""
    names = {kind: config[kind]["name"] for kind in ("problem", "model")}
    return "".join(f" --{kind} {shlex.quote(name)}" for kind, name in names.items() if ":" in name)
