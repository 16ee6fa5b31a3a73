"""Problems without settings of their own: auto against methods with their defaults.

    python benchmarks/untuned.py --out runs.jsonl --budget 20 [NAME …]
    python benchmarks/untuned.py --out runs.jsonl --budget 20 --seeds 10 helmholtz-auto
    python benchmarks/untuned.py --out runs.jsonl --table

Names are PROBLEM-METHOD, as allen_cahn-adam: the examples and poisson_2d, on a CPU.
"""

import runpy
from argparse import Namespace
from pathlib import Path
from typing import Any

import jax
import lines

import natpinn

METHODS: dict[str, dict[str, Any]] = {
    "auto": {},
    "spring": {},
    "adam": {},
    "lbfgs": {"steps_per_batch": 500},  # without a batch to hold on to it fails at once
}
EXAMPLES = Path(__file__).parent.parent / "examples"
PROBLEMS = ["poisson_2d", *(path.stem for path in sorted(EXAMPLES.glob("*.py")))]
NAMES = [f"{problem}-{method}" for problem in PROBLEMS for method in METHODS]
COLUMNS = ("step", "seconds", "loss", "l2", "relative_l2")


def main() -> None:
    lines.run_seeds(lines.parser(__doc__, NAMES, 20.0), NAMES, solve, table)


def solve(name: str, seed: int, arguments: Namespace) -> lines.Record:
    """A method as anybody gets it who names it, whatever presets know about the problem."""
    where, method = name.split("-")
    options = {"optimizer": getattr(natpinn, method)(), **METHODS[method]}
    options["budget"] = arguments.budget
    problem, model = load(where, seed)
    jax.clear_caches()
    return lines.solve(f"{name}-{seed}", COLUMNS, problem, model=model, seed=seed, **options)


def load(name: str, seed: int) -> tuple[Any, Any]:
    """A problem, and its model if it has one of its own."""
    if name in natpinn.problems.CATALOGUE:
        return natpinn.problems.get(name), None
    example = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    make = example.get("model")
    return example["problem"], make and make(jax.random.key(seed))


def table(records: dict[str, lines.Record]) -> str:
    """The relative errors of what is returned, over the seeds from the smallest to the largest."""
    rows = [["problem", "steps of auto", *METHODS]]
    for problem in PROBLEMS:
        row = [problem, "–"]
        for method in METHODS:
            found = [r for n, r in records.items() if n.rpartition("-")[0] == f"{problem}-{method}"]
            errors = sorted(r["summary"]["relative_l2"] for r in found)
            spread = f" to {errors[-1]:.1e} ({len(errors)} seeds)" if len(errors) > 1 else ""
            row.append(f"{errors[0]:.1e}{spread}" if errors else "–")
            if method == "auto" and found:
                row[1] = str(found[0]["summary"]["steps"])
        rows.append(row)
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    main()
