"""What each part of auto is worth: variants of its rule on the paper's problems, over some seeds.

    python benchmarks/auto.py --out runs.jsonl --budget 60 --seeds 3 [NAME …]
    python benchmarks/auto.py --out runs.jsonl --small --steps 600 [NAME …]
    python benchmarks/auto.py --out runs.jsonl --table

Names are PROBLEM-VARIANT, as poisson_5d-careful. With `--small` the nets and batches are such that
two CPU cores take a step in a tenth of a second; otherwise they are the paper's, for a large GPU.
"""

from argparse import Namespace
from typing import Any

import lines

from natpinn import config
from natpinn.problem import Problem
from natpinn.settings import flatten

VARIANTS: dict[str, dict[str, Any]] = {
    "auto": {"name": "auto"},
    "tuned": {"name": "spring"},  # with the settings that the paper found
    "slow": {"name": "auto", "learning_rate": 0.1},
    "fast": {"name": "auto", "learning_rate": 0.4},
    "careful": {"name": "auto", "surprise": 0.5},
    "forgetful": {"name": "auto", "forgetting": 15.0},
    "damped": {"name": "auto", "least_damping": 1e-12},
    "no_settling": {"name": "auto", "settle_from": 0.999999},
}
SMALL: dict[str, dict[str, Any]] = {
    "poisson_5d": {
        "points": {"interior": 600, "boundary": 100},
        "model": {"widths": [32, 32, 24, 24]},
    },
    "poisson_10d": {
        "points": {"interior": 100, "boundary": 50},
        "model": {"widths": [64, 64, 48, 48]},
    },
    "poisson_100d": {
        "problem": {"dimension": 30},
        "points": {"interior": 40, "boundary": 20},
        "model": {"widths": [96, 96, 64, 64]},
    },
    "heat_4d": {
        "points": {"interior": 300, "boundary": 25, "initial": 25},
        "model": {"widths": [64, 64, 48, 48]},
    },
    "log_fokker_planck_9d": {
        "points": {"interior": 300, "initial": 100},
        "model": {"widths": [64, 64, 48, 48]},
    },
}
BUILT: dict[Any, Problem] = {}  # one object for all runs, which then share compiled programs
NAMES = [f"{problem}-{variant}" for problem in SMALL for variant in VARIANTS]


def main() -> None:
    parser = lines.parser(__doc__, NAMES, 60.0)
    parser.add_argument("--steps", type=int, help="so many steps instead of a budget")
    parser.add_argument("--small", action="store_true")
    lines.run_seeds(parser, NAMES, solve, table)


def solve(name: str, seed: int, arguments: Namespace) -> lines.Record:
    ends = {"steps": arguments.steps} if arguments.steps else {"budget": arguments.budget}
    problem, variant = name.split("-")
    given = {f"optimizer.{key}": value for key, value in VARIANTS[variant].items()}
    sizes = flatten(SMALL[problem]) if arguments.small else {}
    settings = config.resolve({"problem.name": problem, "seed": seed, **sizes, **given})
    described = (problem, tuple(settings.points.items()))
    if described not in BUILT:
        BUILT[described] = settings.build_problem()
    columns = ("step", "seconds", "loss", "l2_error", "damping", "momentum", "surprise")
    return lines.solve_settings(f"{name}-{seed}", columns, settings, BUILT[described], **ends)


def table(records: dict[str, lines.Record]) -> str:
    """The last errors of each name over its seeds: the median, the smallest and the largest."""
    errors: dict[str, list[float]] = {}
    for name, record in records.items():
        last = record["history"][-1]["l2_error"]
        errors.setdefault(name.rpartition("-")[0], []).append(last)
    rows = ["run | median | smallest | largest | seeds"]
    for name, found in errors.items():
        found.sort()
        numbers = (found[len(found) // 2], found[0], found[-1])
        rows.append(" | ".join([name, *(f"{n:.1e}" for n in numbers), str(len(found))]))
    return "\n".join(rows)


if __name__ == "__main__":
    main()
