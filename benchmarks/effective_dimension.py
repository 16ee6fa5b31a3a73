"""The effective dimension during training: ENGD-W on poisson_5d, SPRING on poisson_100d.

python benchmarks/effective_dimension.py --out runs.jsonl [--budget 25]
python benchmarks/effective_dimension.py --out runs.jsonl --draw effective_dimension.png
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

import natpinn

RUNS = {"poisson_5d": "engd_w", "poisson_100d": "spring"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="runs are appended to this file")
    parser.add_argument("--budget", type=float, default=25.0, help="seconds a run")
    parser.add_argument("--draw", type=Path, help="draw the runs of the file instead")
    arguments = parser.parse_args()
    if arguments.draw is None:
        for problem in RUNS:
            with arguments.out.open("a") as file:
                file.write(json.dumps(solve(problem, arguments.budget)) + "\n")
        return
    draw([json.loads(line) for line in arguments.out.read_text().splitlines()], arguments.draw)


def solve(problem: str, budget: float) -> dict[str, object]:
    tracked = ["effective_dimension", "largest_eigenvalue"]
    solution = natpinn.solve(problem, optimizer=RUNS[problem], budget=budget, track=tracked)
    columns = ("step", "seconds", "l2_error", "damping", *tracked)
    history = [{key: r[key] for key in columns if key in r} for r in solution.history]
    return {"problem": problem, "summary": solution.summary, "history": history}


def draw(runs: list[dict[str, dict[str, dict[str, int]]]], path: Path) -> None:
    figure, axes = plt.subplots(1, len(runs), figsize=(9, 3.6), layout="constrained")
    for run, axis in zip(runs, axes, strict=True):
        history: list[dict[str, float]] = run["history"][1:]  # pyright: ignore
        rows = sum(run["summary"]["points"].values())
        axis.semilogx(
            [r["step"] for r in history], [r["effective_dimension"] / rows for r in history]
        )
        axis.axhline(0.5, color="gray", lw=0.8, ls="--")
        name = str(run["problem"])
        axis.set(
            title=f"{name}, {RUNS[name]}, N = {rows:,}",
            xlabel="steps",
            ylabel="effective dimension / N",
            ylim=(0, 1.05),
        )
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
