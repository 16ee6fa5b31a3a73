"""The paper's problems at paper size: one `natpinn solve` per line, and a table of what came out.

    python benchmarks/paper_targets.py --out OUT [NAME …]

Meant for a large GPU; each run is the command that the table names.
"""

from typing import Any

from runs import run_all

RUNS = {
    "5d": "poisson_5d --optimizer spring --budget 60",
    "100d": "poisson_100d --optimizer spring --budget 60",
    "heat": "heat_4d --optimizer spring --budget 30",
    "fokker_planck": "log_fokker_planck_9d --optimizer spring --budget 60",
    "10d": "poisson_10d --optimizer engd_w --budget 40",
    "10d_fixed": "poisson_10d --optimizer spring --steps 200"
    " --set points.interior=3000 --set points.boundary=500",
}


def outcome(summary: dict[str, Any], metrics: list[dict[str, Any]]) -> str:
    milliseconds = 1000 / summary["steps_per_second"]
    return (
        f"{summary['status']}: L2 best {summary['best_l2']:.3e} final {summary['final_l2']:.3e}, "
        f"{summary['steps']} steps, {milliseconds:.2f} ms/step, {summary['seconds']:.1f} s, "
        f"compile {summary['compile_seconds']:.1f} s, "
        f"peak {summary['peak_memory_bytes'] / 2**30:.2f} GiB on {summary['device']}"
    )


if __name__ == "__main__":
    run_all(__doc__, RUNS, outcome)
