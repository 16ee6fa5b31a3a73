"""The records of thirty steps of every method on six small problems, to compare two versions with.

    python tests/trajectories.py --out before.json
    python tests/trajectories.py --out after.json
    python tests/trajectories.py --compare before.json after.json
    python tests/trajectories.py --shorten after.json tests/data/trajectories.json

On one machine and one version of JAX the records of two versions agree to the last digit, unless a
change reorders sums. Across machines they do not, so `tests/data/trajectories.json` is compared
with tolerances (`tests/test_trajectories.py`).
"""

import argparse
import json
import math
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import natpinn

ROOT = Path(__file__).parent.parent
STEPS = 30
CLOSE = 5  # steps that are the same on every machine but for round-off
CLOCKS = ("seconds",)  # what differs from run to run

METHODS: dict[str, Callable[[], Any]] = {
    "sgd": natpinn.sgd,
    "adam": natpinn.adam,
    "lbfgs": natpinn.lbfgs,
    "hessian_free": natpinn.hessian_free,
    "kfac": natpinn.kfac,
    "engd": natpinn.engd,
    "engd_w": natpinn.engd_w,
    "spring": natpinn.spring,
    "engd_w_nystrom": natpinn.engd_w_nystrom,
    "spring_nystrom": natpinn.spring_nystrom,
    "auto": natpinn.auto,
}
MORE_METHODS: dict[str, Callable[[], Any]] = {  # on poisson_2d only
    "engd_average": lambda: natpinn.engd(average=0.5, damping=1e-4),
    "spring_search": lambda: natpinn.spring(line_search=natpinn.Grid()),
    "nystrom_ladder": lambda: natpinn.spring(1e-8, solver=natpinn.AdaptiveNystrom()),
    "nystrom_standard": lambda: natpinn.engd_w_nystrom(variant="standard"),
    "kfac_rate": lambda: natpinn.kfac(learning_rate=0.1, momentum=0.5),
    "hessian": lambda: natpinn.hessian_free(curvature="hessian", learning_rate=1.0),
    "cg": lambda: natpinn.NaturalGradient(
        natpinn.ConjugateGradients(rank=20), natpinn.Grid(), damping=1e-6
    ),
}


def catalogued(name: str, points: dict[str, int], **sizes: Any) -> Callable[[], tuple[Any, Any]]:
    def make() -> tuple[Any, Any]:
        problem = natpinn.problems.get(name, points=points, **sizes).with_evaluation_points(200)
        return problem, problem.default_model(jax.random.key(3), (12, 10))

    return make


def example(
    name: str, points: dict[str, int], widths: tuple[int, ...] | None = None
) -> Callable[[], tuple[Any, Any]]:
    def make() -> tuple[Any, Any]:
        found = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
        problem = found["problem"].with_points(points).with_evaluation_points(200)
        key = jax.random.key(3)
        if "model" in found:
            return problem, found["model"](key)
        return problem, problem.default_model(key, widths, jnp.tanh)

    return make


PROBLEMS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "poisson_2d": catalogued("poisson_2d", {"interior": 40, "boundary": 20}),
    "poisson_5d": catalogued("poisson_5d", {"interior": 40, "boundary": 20}),
    "heat_4d": catalogued("heat_4d", {"interior": 40, "boundary": 12, "initial": 12}),
    "log_fokker_planck_9d": catalogued("log_fokker_planck_9d", {"interior": 40, "initial": 15}),
    "kovasznay": example("kovasznay", {"flow": 30, "boundary": 15}, (30, 30)),
    "inverse_heat": example("inverse_heat", {"heat": 40, "ends": 15}),
}
REFUSED = {"inverse_heat-kfac"}  # its diffusivity belongs to no dense layer
NAMES = [
    *(f"{p}-{m}" for p in PROBLEMS for m in METHODS if f"{p}-{m}" not in REFUSED),
    *(f"poisson_2d-{method}" for method in MORE_METHODS),
]


def run(name: str, steps: int = STEPS) -> list[dict[str, float]]:
    """The records of one run, without what clocks say."""
    where, method = name.split("-")
    problem, model = PROBLEMS[where]()
    optimizer = (METHODS | MORE_METHODS)[method]()
    solution = natpinn.solve(problem, model, optimizer, steps=steps, progress=False)
    return [{k: v for k, v in record.items() if k not in CLOCKS} for record in solution.history]


def shortened(records: dict[str, Any]) -> str:
    """The first steps and the last of each run, with twelve digits, as JSON."""
    runs = []
    for name, lines in records.items():
        kept = [line for line in lines if line["step"] <= CLOSE or line is lines[-1]]
        short = [{key: float(f"{value:.12g}") for key, value in line.items()} for line in kept]
        rows = ",\n".join(f"  {json.dumps(line)}" for line in short)
        runs.append(f"{json.dumps(name)}: [\n{rows}\n]")
    return "{\n" + ",\n".join(runs) + "\n}\n"


def compare(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What differs, a line for each run."""
    found = []
    for name in sorted(old.keys() | new.keys()):
        if name not in old or name not in new:
            found.append(f"{name}: only in one of them")
            continue
        for before, after in zip(old[name], new[name], strict=False):
            differing = [k for k in before if not _same(before[k], after.get(k, math.inf))]
            if differing or before.keys() != after.keys():
                key = differing[0] if differing else "keys"
                found.append(
                    f"{name}, step {before['step']}: {key} {before.get(key)!r} {after.get(key)!r}"
                )
                break
    return found


def _same(a: float, b: float) -> bool:
    return a == b or (a != a and b != b)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compare", type=Path, nargs=2)
    parser.add_argument("--shorten", type=Path, nargs=2)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    if arguments.shorten:
        whole, short = arguments.shorten
        short.write_text(shortened(json.loads(whole.read_text())))
        return
    if arguments.compare:
        old, new = (json.loads(path.read_text()) for path in arguments.compare)
        differences = compare(old, new)
        print("\n".join(differences) or f"{len(new)} runs are the same to the last digit")
        sys.exit(bool(differences))
    records = {}
    for name in arguments.names or NAMES:
        records[name] = run(name)
        jax.clear_caches()  # a process may have so many maps of memory only
        print(name, records[name][-1]["loss"], flush=True)
        arguments.out.write_text(json.dumps(records, indent=0))


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
