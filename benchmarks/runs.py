"""Runs `natpinn solve` for each line of a table, and prints what came out of each."""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Outcome = Callable[[dict[str, Any], list[dict[str, Any]]], str]  # of a summary and its metrics


def run_all(description: str | None, runs: dict[str, str], outcome: Outcome) -> None:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(runs)}")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.names or runs:
        folder = arguments.out / name
        command = ["solve", *runs[name].split(), "--out", str(folder)]
        subprocess.run([sys.executable, "-m", "natpinn", *command], check=True)
        summary = json.loads((folder / "summary.json").read_text())
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        rows.append(
            f"natpinn solve {runs[name]}\n    {outcome(summary, [json.loads(x) for x in lines])}"
        )
    print("\n".join(rows))
