"""Runs of a benchmark, one JSON object a line, appended as they finish."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import natpinn

Record = dict[str, Any]


def parser(description: str | None, names: Sequence[str], budget: float) -> argparse.ArgumentParser:
    """What the command line of every such benchmark has."""
    found = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--out", type=Path, required=True, help="runs are appended to this file")
    found.add_argument("--budget", type=float, default=budget, help="seconds a run")
    found.add_argument("names", nargs="*", choices=[*names, []], metavar="NAME")
    return found


def run_seeds(
    parser: argparse.ArgumentParser,
    names: Sequence[str],
    solve: Callable[[str, int, argparse.Namespace], Record],
    table: Callable[[dict[str, Record]], str],
) -> None:
    """Run the names that are asked for, or all, over some seeds, and print a table of the file."""
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print the runs of the file instead")
    arguments = parser.parse_args()
    for name in [] if arguments.table else arguments.names or names:
        for seed in range(arguments.seeds):
            append(arguments.out, solve(name, seed, arguments))
    print(table(read(arguments.out)))


def solve(name: str, columns: Sequence[str], problem: Any, **options: Any) -> Record:
    """A run by its name, its summary and some columns of its metrics; Ctrl-C ends all runs."""
    solution = natpinn.solve(problem, progress=False, **options)
    if solution.summary["status"] == "interrupted":
        raise KeyboardInterrupt(f"{name} was interrupted, and is not recorded")
    history = [{key: r[key] for key in columns if key in r} for r in solution.history]
    return {"name": name, "summary": solution.summary, "history": history}


def append(path: Path, record: Record) -> None:
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


def read(path: Path) -> dict[str, Record]:
    """The last run of each name."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return {record["name"]: record for record in records}


def seconds_to(error: float, history: Sequence[Record]) -> float | None:
    """When the error was first reached."""
    times = [r["seconds"] for r in history if (r["l2"] or 1) <= error]
    return times[0] if times else None
