"""Exact, sketched and automatic rank on poisson_5d, with batches of 1000, 5000 and 10,000 rows.

    python benchmarks/randomized.py --out runs.jsonl [NAME …]
    python benchmarks/randomized.py --out runs.jsonl --draw randomized.png

Names are METHOD-ROWS, as exact-1000, gpu-5000, standard-5000, auto-10000. Meant for a large GPU.
"""

from pathlib import Path

import lines
import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

import natpinn
from natpinn import engd_w, engd_w_nystrom

DAMPING = 3.1732122998048178e-12  # of the paper's best run of ENGD-W
OPTIMIZERS = {
    "exact": engd_w(DAMPING),
    "gpu": engd_w_nystrom(DAMPING, rank=0.1),
    "standard": engd_w_nystrom(DAMPING, rank=0.1, variant="standard"),
    "auto": engd_w(DAMPING, solver=natpinn.AdaptiveNystrom()),
}
ROWS = (1000, 5000, 10_000)
NAMES = [f"{method}-{rows}" for rows in ROWS for method in OPTIMIZERS]
COLUMNS = ("step", "seconds", "loss", "l2", "step_size", "sketch_rank", "missed_share")


def main() -> None:
    parser = lines.parser(__doc__, NAMES, 60.0)
    parser.add_argument("--draw", type=Path, help="draw the runs of the file instead")
    arguments = parser.parse_args()
    if arguments.draw is not None:
        draw(lines.read(arguments.out), arguments.draw)
        return
    for name in arguments.names or NAMES:
        record = solve(name, arguments.budget)
        lines.append(arguments.out, record)
        print(describe(record))


def solve(name: str, budget: float) -> lines.Record:
    method, rows = name.split("-")
    interior = int(rows) * 17 // 20
    problem = natpinn.problems.get(
        "poisson_5d", points={"interior": interior, "boundary": int(rows) - interior}
    )
    return lines.solve(name, COLUMNS, problem, optimizer=OPTIMIZERS[method], budget=budget)


def describe(record: lines.Record) -> str:
    summary, history = record["summary"], record["history"]
    times = {e: lines.seconds_to(e, history) for e in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)}
    reached = [f"{e:.0e} {'–' if t is None else f'{t:.2f} s'}" for e, t in times.items()]
    return (
        f"{record['name']}: {summary['status']}, best L2 {summary['best_l2']:.2e}, "
        f"{1000 / summary['steps_per_second']:.2f} ms/step, {summary['steps']} steps; "
        f"{', '.join(reached)}"
    )


def draw(records: dict[str, lines.Record], path: Path) -> None:
    figure, axes = plt.subplots(1, len(ROWS), figsize=(13, 4), sharey=True, layout="constrained")
    for rows, axis in zip(ROWS, axes, strict=True):
        for method in OPTIMIZERS:
            history = records[f"{method}-{rows}"]["history"][1:]
            seconds = [r["seconds"] for r in history]
            axis.loglog(seconds, [r["l2"] for r in history], label=method, lw=1.2)
        axis.set(title=f"N = {rows:,}", xlabel="seconds")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("L2 error")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
