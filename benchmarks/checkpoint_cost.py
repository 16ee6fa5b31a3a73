"""What checkpoints cost: the wall time of the same steps with many of them and with none.

    python benchmarks/checkpoint_cost.py [PROBLEM] [--steps 3000] [--every 2]

The first run only compiles. Evaluations are left out of the count by making them the same.
"""

import argparse
import tempfile
import time
from pathlib import Path

import natpinn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problem", nargs="?", default="poisson_100d")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between checkpoints")
    arguments = parser.parse_args()
    never = 1e9
    wall_seconds(arguments.problem, 3, never)
    without, _ = wall_seconds(arguments.problem, arguments.steps, never)
    with_them, count = wall_seconds(arguments.problem, arguments.steps, arguments.every)
    each = (with_them - without) / max(count, 1)
    print(
        f"{arguments.problem}: {arguments.steps} steps take {without:.2f} s, with {count} "
        f"checkpoints {with_them:.2f} s: {1000 * each:.0f} ms each, {each / 60:.2%} of the time at "
        f"one every 60 s"
    )


def wall_seconds(problem: str, steps: int, every: float) -> tuple[float, int]:
    """From the first step to the last, and the number of checkpoints in between."""
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        natpinn.solve(
            problem,
            optimizer="spring",
            steps=steps,
            out=Path(folder) / "run",
            checkpoint_seconds=every,
            progress=False,
            callbacks=[lambda progress: times.append(time.monotonic())],
        )
    elapsed = times[-1] - times[0]
    return elapsed, int(elapsed / every)


if __name__ == "__main__":
    main()
