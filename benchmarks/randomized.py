"""Exact, sketched and automatic rank on poisson_5d, with batches of 1000, 5000 and 10,000 rows.

    python benchmarks/randomized.py --out OUT [NAME …]

Names are METHOD-ROWS, as exact-1000, gpu-5000, standard-5000, auto-10000. Meant for a large GPU.
"""

from typing import Any

from runs import run_all

METHODS = {
    "exact": "engd_w",
    "gpu": "engd_w_nystrom --set optimizer.rank=0.1",
    "standard": "engd_w_nystrom --set optimizer.rank=0.1 --set optimizer.variant=standard",
    "auto": "engd_w_nystrom --set optimizer.rank=auto",
}
RUNS = {
    f"{method}-{rows}": f"poisson_5d --optimizer {optimizer} --budget 60"
    f" --set points.interior={rows * 17 // 20} --set points.boundary={rows * 3 // 20}"
    for rows in (1000, 5000, 10_000)
    for method, optimizer in METHODS.items()
}


def outcome(summary: dict[str, Any], metrics: list[dict[str, Any]]) -> str:
    reached = []
    for error in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
        times = [r["seconds"] for r in metrics if (r["l2_error"] or 1) <= error]
        reached.append(f"{error:.0e} {times[0]:.1f} s" if times else f"{error:.0e} –")
    ranks = [record.get("sketch_rank") for record in metrics[1:]]
    return (
        f"{summary['status']}: best L2 {summary['best_l2']:.2e}, "
        f"{1000 / summary['steps_per_second']:.2f} ms/step, {summary['steps']} steps; "
        f"{', '.join(reached)}"
        + (f"; ranks {ranks[0]:.0f} … {ranks[-1]:.0f}" if ranks and ranks[-1] else "")
    )


if __name__ == "__main__":
    run_all(__doc__, RUNS, outcome)
