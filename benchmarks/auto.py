"""What each part of auto is worth: variants of its rule on many problems, over some seeds.

    python benchmarks/auto.py --out runs.jsonl --budget 60 --seeds 3 [NAME …]
    python benchmarks/auto.py --out runs.jsonl --small --steps 600 [NAME …]
    python benchmarks/auto.py --out runs.jsonl --table

Names are PROBLEM-VARIANT, as poisson_5d-careful or burgers-no_way_back, of the paper's problems and
the examples. With `--small` the nets and batches of the paper's are such that two CPU cores take
a step in a tenth of a second; otherwise they are the paper's, for a large GPU.
"""

import math
from argparse import Namespace
from typing import Any

import equinox as eqx
import lines
import untuned

import natpinn

VARIANTS: dict[str, dict[str, Any]] = {  # settings of auto
    "auto": {},
    "slow": {"learning_rate": 0.1},
    "fast": {"learning_rate": 0.4},
    "careful": {"surprise": 0.5},
    "forgetful": {"forgetting": 15.0},
    "damped": {"least_damping": 1e-12},
    "shallow": {"least_damping": 1e-16},  # what a kernel's Cholesky factor can do
    "deep_at_once": {},
    "no_settling": {"settle_from": 0.999999},
    "not_calm": {"calm": 1.5},  # settles by shorter steps alone
    "no_momentum": {"forgetting": 1e9},
    "always_older": {},
    "no_fading": {},
    "no_way_back": {},
    "no_return": {},
}
RULES: dict[str, natpinn.AutoRule] = {  # numbers of the rule, which a variant has otherwise
    "always_older": natpinn.AutoRule(ageing_back=-1.0),
    "deep_at_once": natpinn.AutoRule(few_steps=-1.0, many_steps=0.0),
    "no_fading": natpinn.AutoRule(fading=1.0),
    "no_way_back": natpinn.AutoRule(jump=math.inf),
    "no_return": natpinn.AutoRule(astray=math.inf),
}
SMALL: dict[str, dict[str, Any]] = {
    "poisson_5d": {"points": {"interior": 600, "boundary": 100}, "widths": (32, 32, 24, 24)},
    "poisson_10d": {"points": {"interior": 100, "boundary": 50}, "widths": (64, 64, 48, 48)},
    "poisson_100d": {
        "dimension": 30,
        "points": {"interior": 40, "boundary": 20},
        "widths": (96, 96, 64, 64),
    },
    "heat_4d": {
        "points": {"interior": 300, "boundary": 25, "initial": 25},
        "widths": (64, 64, 48, 48),
    },
    "log_fokker_planck_9d": {
        "points": {"interior": 300, "initial": 100},
        "widths": (64, 64, 48, 48),
    },
}
TUNED = "tuned"  # SPRING with the settings that the paper found
NAMES = [f"{problem}-{variant}" for problem in SMALL for variant in (TUNED, *VARIANTS)]
MORE = [f"{problem}-{variant}" for problem in untuned.PROBLEMS for variant in VARIANTS]
COLUMNS = ("step", "seconds", "loss", "l2", "damping", "momentum", "surprise", "heat")


def main() -> None:
    parser = lines.parser(__doc__, NAMES + MORE, 60.0)
    parser.add_argument("--steps", type=int, help="so many steps instead of a budget")
    parser.add_argument("--small", action="store_true")
    lines.run_seeds(parser, NAMES, solve, table)


def solve(name: str, seed: int, arguments: Namespace) -> lines.Record:
    ends = {"steps": arguments.steps} if arguments.steps else {"budget": arguments.budget}
    problem, variant = name.split("-")
    if problem in SMALL:
        return solve_paper(name, seed, arguments.small, ends)
    built, model = untuned.load(problem, seed)
    options = {"optimizer": optimizer_of(variant), "model": model, "seed": seed, **ends}
    return lines.solve(f"{name}-{seed}", COLUMNS, built, **options)


def optimizer_of(variant: str) -> natpinn.Auto:
    plain = natpinn.auto(**VARIANTS[variant])
    return eqx.tree_at(lambda auto: auto.rule, plain, RULES.get(variant, natpinn.AutoRule()))


def solve_paper(name: str, seed: int, is_small: bool, ends: dict[str, Any]) -> lines.Record:
    where, variant = name.split("-")
    optimizer = "spring" if variant == TUNED else optimizer_of(variant)
    problem = natpinn.problems.get(where, **(SMALL[where] if is_small else {}))
    return lines.solve(f"{name}-{seed}", COLUMNS, problem, optimizer=optimizer, seed=seed, **ends)


def table(records: dict[str, lines.Record]) -> str:
    """The last errors of each name over its seeds: the median, the smallest and the largest."""
    errors: dict[str, list[float]] = {}
    for name, record in records.items():
        last = record["history"][-1]["l2"]
        errors.setdefault(name.rpartition("-")[0], []).append(last)
    rows = ["run | median | smallest | largest | seeds"]
    for name, found in errors.items():
        found.sort()
        numbers = (found[len(found) // 2], found[0], found[-1])
        rows.append(" | ".join([name, *(f"{n:.1e}" for n in numbers), str(len(found))]))
    return "\n".join(rows)


if __name__ == "__main__":
    main()
