"""Records of the paper's experiments as small CSV files, and what they say about its claims.

    python benchmarks/results.py collect runs          # run folders of `natpinn experiment run`
    python benchmarks/results.py table                 # ours beside the published runs
    python benchmarks/results.py claims
    python benchmarks/results.py draw --published best_runs.csv

The files are docs/results/runs.csv (one line a run), docs/results/curves.csv and, of the published
runs, docs/results/published.csv: their best errors, times and settings, no curves.
"""

import argparse
import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from natpinn import Curve, Run, read_curves, read_runs

RESULTS = Path(__file__).parent.parent / "docs" / "results"
RUNS, CURVES, PUBLISHED = (RESULTS / f"{n}.csv" for n in ("runs", "curves", "published"))
FIGURES = RESULTS.parent / "figures"
ERRORS = (1e-3, 1e-4, 1e-5, 1e-6)  # the time to each of them is recorded
COLUMNS = ("run", "step", "seconds", "loss", "l2")  # of a file of curves
MODES = {True: "fixed_lr", False: "line_search"}
RULES = {"fixed_lr": ", fixed rate", "line_search": ", line search", "own": ""}
COLOURS = {  # of an optimizer and its step rule, ours and published
    ("auto", "own"): "black",
    ("engd_w", "line_search"): "C0",
    ("spring", "line_search"): "C1",
    ("engd_w", "fixed_lr"): "C2",
    ("spring", "fixed_lr"): "C3",
}

Row = dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    collector = commands.add_parser("collect")
    collector.add_argument("folders", nargs="+", type=Path)
    commands.add_parser("table")
    commands.add_parser("claims")
    drawer = commands.add_parser("draw")
    drawer.add_argument("--published", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "collect":
        runs, left_out = read_runs(arguments.folders)
        print("\n".join(f"left out {reason}" for reason in left_out))
        write(runs)
    elif arguments.command == "table":
        print(table(read(RUNS), read(PUBLISHED)))
    elif arguments.command == "claims":
        print("\n".join(claims(read(RUNS))))
    else:
        published = read_curves(arguments.published) if arguments.published else []
        draw(read(RUNS), published)


def write(runs: Sequence[Run]) -> None:
    """Add runs to the files; one that is there is replaced."""
    RESULTS.mkdir(exist_ok=True)
    names = {_name(run) for run in runs}
    kept = [row for row in read(RUNS) if row["run"] not in names] if RUNS.exists() else []
    _write(RUNS, [*kept, *map(describe, runs)])
    kept = [row for row in read(CURVES) if row["run"] not in names] if CURVES.exists() else []
    _write(CURVES, [*kept, *(line for run in runs for line in _lines(run))])


def describe(run: Run) -> dict[str, Any]:
    end = run.curve.seconds[-1]
    return {
        "run": _name(run),
        "experiment": run.folder.parent.name,
        "problem": run.problem,
        "method": run.folder.name.rpartition("-")[0],
        "optimizer": run.config["optimizer.name"],
        "step_size": _step_size(run),
        "rows": run.points,  # each of the paper's residuals is one number
        "net": _net(run.config),
        "seed": run.seed,
        "steps": int(run.curve.step[-1]),
        "seconds": _short(run.curve.seconds[-1]),
        "best_l2": _short(run.best),
        "final_l2": _short(run.final),
        **{f"seconds_to_{error:.0e}": _short(run.curve.seconds_to(error)) for error in ERRORS},
        "effective_dimension": _dimension(run.curve, end),
        "effective_dimension_half_way": _dimension(run.curve, end / 2),
        "device": run.summary.get("device", ""),
    }


def table(ours: Sequence[Row], published: Sequence[Row]) -> str:
    """Errors beside those of the published counterpart, and our time to its error."""
    curves = _by_run(read_curves(CURVES))
    lines = [
        "| run | L2 error | seconds | published | seconds to that error | times as fast |",
        "|---" * 6 + "|",
    ]
    for row in sorted(ours, key=lambda row: (row["problem"], row["run"])):
        match = find(published, row)
        error = float(match["best_l2"]) if match else math.nan
        reached = curves[row["run"]].seconds_to(error)
        cells = (
            row["run"].partition("/")[2],
            f"{float(row['best_l2']):.1e}" if row["best_l2"] else "",
            f"{float(row['seconds']):.0f}",
            f"{error:.1e} in {match['seconds']} s" if match else "",
            f"{reached:.1f}" if reached else "not reached" if match else "",
            f"{float(match['seconds']) / reached:.0f}" if match and reached else "",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def find(published: Iterable[Row], row: Row) -> Row | None:
    """The published run of the same problem, optimizer, step rule, batch size and net."""
    for other in published:
        rows = int(other["n_interior"]) + int(other["n_condition"])
        rule = row["step_size"] if other["step_size"] != "own" else "own"
        keys = (other["problem"], other["optimizer"], other["step_size"], rows, other["model"])
        if keys == (row["problem"], row["optimizer"], rule, int(row["rows"]), row["net"]):
            return other
    return None


def claims(ours: Sequence[Row]) -> list[str]:
    """What the paper says, and whether our records agree."""
    found = {(row["experiment"], row["method"]): row for row in ours if row["seed"] == "0"}

    def number(experiment: str, method: str, column: str) -> float:
        """NaN without a run, and infinity where a run has not come so far."""
        row = found.get((experiment, method))
        if row is None:
            return math.nan
        return float(row[column]) if row[column] else math.inf

    def rate(method: str) -> float:
        steps, seconds = (number("poisson_5d", method, c) for c in ("steps", "seconds"))
        return steps / seconds

    def holds(text: str, is_true: bool, *numbers: float) -> str:
        if any(math.isnan(n) for n in numbers):
            return f"not measured: {text}"
        shown = ", ".join(f"{n:.3g}" for n in numbers)
        return f"{'holds' if is_true else 'NOT REPRODUCED'}: {text} ({shown})"

    lines: list[str] = []
    for net, method in (("its smaller net", "engd"), ("the same net", "engd_same_net")):
        speed = rate("engd_w") / rate(method)
        text = f"Woodbury takes 30 times the steps of dense ENGD on 5d with {net}"
        lines.append(holds(text, speed >= 30, speed))
    for name in ("poisson_100d", "poisson_100d_fixed", "fokker_planck", "fokker_planck_fixed"):
        a, b = (number(name, method, "best_l2") for method in ("spring", "engd_w"))
        lines.append(holds(f"SPRING is at least as good as ENGD-W on {name}", a <= b, a, b))
    for rows in (5000, 10_000):
        early, late = "seconds_to_1e-03", "best_l2"
        exact, sketch = f"engd_w_{rows}", f"nystrom_gpu_{rows}"
        a, b = (number("poisson_5d_large", m, early) for m in (sketch, exact))
        lines.append(holds(f"a sketch is faster to 1e-3 with {rows} rows", a < b, a, b))
        a, b = (number("poisson_5d_large", m, late) for m in (sketch, exact))
        lines.append(holds(f"and not better at the end with {rows} rows", a >= b, a, b))
    for problem in ("poisson_5d", "poisson_100d"):
        rows, size, before = (
            number("effective_dimension", problem, column)
            for column in ("rows", "effective_dimension", "effective_dimension_half_way")
        )
        share = size / rows
        text = f"the effective dimension has a plateau above N/2 on {problem}"
        is_flat = abs(size - before) < 0.1 * size
        lines.append(holds(text, share > 0.5 and is_flat, share, before / rows))
    return lines


def draw(ours: Sequence[Row], published: Sequence[Curve]) -> None:
    """For each problem the error over time, further seeds pale, published counterparts dashed."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    curves, others = _by_run(read_curves(CURVES)), _by_run(published)
    matches = read(PUBLISHED)
    shown = sorted(filter(_is_main, ours), key=lambda row: int(row["seed"]))
    for problem in sorted({row["problem"] for row in shown}):
        figure, axis = plt.subplots(figsize=(7, 4.2), layout="constrained")
        for kind, colour in COLOURS.items():
            rows = [row for row in shown if (row["problem"], _kind(row)) == (problem, kind)]
            if not rows:
                continue
            label = kind[0] + RULES[kind[1]]
            for row in rows:
                curve, is_first = curves[row["run"]], row is rows[0]
                style = {"lw": 1.4, "label": label} if is_first else {"lw": 0.8, "alpha": 0.4}
                axis.loglog(curve.seconds, curve.error, color=colour, **style)
            match = find(matches, rows[0])
            if match is not None and match["run"] in others:
                curve = others[match["run"]]
                label = f"published {label}"
                axis.loglog(curve.seconds, curve.error, "--", color=colour, lw=1, label=label)
        axis.set(title=problem, xlabel="seconds of training", ylabel="L2 error")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
        figure.savefig(FIGURES / f"results-{problem}.png", dpi=130)
        plt.close(figure)


def read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _lines(run: Run) -> Iterable[dict[str, Any]]:
    curve = run.curve
    columns = (curve.seconds, curve.loss, curve.error)
    for step, *values in zip(curve.step, *columns, strict=True):
        yield dict(zip(COLUMNS, (_name(run), int(step), *map(_short, values)), strict=True))


def _dimension(curve: Curve, until: float) -> str:
    """The last effective dimension up to that second."""
    pairs = zip(curve.seconds, curve.effective_dimension, strict=False)
    found = [size for seconds, size in pairs if seconds <= until and math.isfinite(size)]
    return _short(found[-1]) if found else ""


def _by_run(curves: Iterable[Curve]) -> dict[str, Curve]:
    return {f"{curve.problem}/{curve.name}": curve for curve in curves}


def _step_size(run: Run) -> str:
    if run.config["optimizer.name"] == "auto":
        return "own"
    return MODES[run.config.get("optimizer.line_search", "none") == "none"]


def _net(config: Mapping[str, Any]) -> str:
    """As published runs write it: mlp-tanh-64-64-48-48."""
    parts = (config[f"model.{key}"] for key in ("name", "activation"))
    return "-".join(map(str, (*parts, *config["model.widths"])))


def _kind(row: Row) -> tuple[str, str]:
    return row["optimizer"], row["step_size"]


def _is_main(row: Row) -> bool:
    """Not one of several batch sizes, sketches or other variants of an optimizer."""
    is_plain = row["method"] == row["optimizer"] or row["experiment"] == "auto"
    return is_plain and _kind(row) in COLOURS


def _name(run: Run) -> str:
    return f"{run.problem}/{run.folder.parent.name}/{run.folder.name}"


def _short(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.4g}"


if __name__ == "__main__":
    main()
