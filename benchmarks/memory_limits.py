"""Runs that would not fit, under memory limits: what they take and how long a step lasts.

    python benchmarks/memory_limits.py --out OUT [NAME …]

The first three are meant for a GPU with 140 GB, the others for any machine.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

POINTS = "--set points.interior={} --set points.boundary={}"
RUNS = {
    "100d": f"poisson_100d --optimizer spring {POINTS.format(8000, 2000)} --memory-limit 60GB"
    " --steps 4",
    "13m": f"poisson_5d --optimizer spring {POINTS.format(800, 200)}"
    " --set model.widths=[2048,2048,2048,2048] --steps 50",
    "13m-20GB": f"poisson_5d --optimizer spring {POINTS.format(800, 200)}"
    " --set model.widths=[2048,2048,2048,2048] --memory-limit 20GB --steps 10",
    "heat-6GB": "heat_4d --optimizer engd_w --memory-limit 6GB --steps 2",
    "heat-2GB": "heat_4d --optimizer engd_w --memory-limit 2GB --steps 2",
    "heat-1.5GB": "heat_4d --optimizer engd_w --memory-limit 1.5GB --steps 2",
    "5d-1.2GB": "poisson_5d --optimizer engd_w --memory-limit 1.2GB --steps 2",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RUNS)}")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.names or RUNS:
        folder = arguments.out / name
        command = ["solve", *RUNS[name].split(), "--out", str(folder)]
        subprocess.run([sys.executable, "-m", "natpinn", *command], check=True)
        summary = json.loads((folder / "summary.json").read_text())
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        metrics = [json.loads(line) for line in lines]
        rows.append(f"natpinn solve {RUNS[name]}\n    {outcome(summary, metrics)}")
    print("\n".join(rows))


def outcome(summary: dict[str, Any], metrics: list[dict[str, Any]]) -> str:
    return (
        f"{summary['status']}: {1000 / summary['steps_per_second']:.0f} ms/step, loss "
        f"{metrics[0]['loss']:.3g} → {metrics[-1]['loss']:.3g}, peak "
        f"{summary['peak_memory_bytes'] / 1e9:.2f} GB on {summary['device']}\n"
        f"    {summary['strategy']}"
    )


if __name__ == "__main__":
    main()
