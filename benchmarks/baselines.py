"""Every method on poisson_5d and heat_4d: the L2 error after 30, 60 and 120 s.

    python benchmarks/baselines.py --out runs.jsonl [NAME …]
    python benchmarks/baselines.py --out runs.jsonl --table

Names are PROBLEM-METHOD, as poisson_5d-lbfgs, heat_4d-kfac_grid. Meant for a large GPU, and for one
run at a time: two have half the speed each.
"""

import lines

from natpinn.runs.resolve import resolve

DECAY = {"schedule": "cosine_decay_schedule", "init_value": 1e-3, "decay_steps": 200_000}
METHODS = {
    "sgd": {"optimizer.name": "sgd", "optimizer.learning_rate": 2e-3},  # 2.9e-3 may blow up
    "adam": {"optimizer.name": "adam"},
    "adam_decay": {"optimizer.name": "adam", "optimizer.learning_rate": DECAY},
    "lbfgs": {"optimizer.name": "lbfgs"},
    "hessian_free": {"optimizer.name": "hessian_free"},
    "kfac_grid": {"optimizer.name": "kfac", "optimizer.line_search": "grid"},
    "kfac": {"optimizer.name": "kfac"},
    "engd": {"optimizer.name": "engd"},
    "engd_w": {"optimizer.name": "engd_w"},
    "spring": {"optimizer.name": "spring", "optimizer.line_search": "grid"},
    "spring_fixed": {"optimizer.name": "spring"},
}
PROBLEMS = ("poisson_5d", "heat_4d")
NAMES = [f"{problem}-{method}" for problem in PROBLEMS for method in METHODS]
TIMES = (30, 60, 120)


def main() -> None:
    parser = lines.parser(__doc__, NAMES, max(TIMES))
    parser.add_argument("--table", action="store_true", help="print the runs of the file instead")
    arguments = parser.parse_args()
    if not arguments.table:
        for name in arguments.names or NAMES:
            lines.append(arguments.out, solve(name, arguments.budget))
    print(table(lines.read(arguments.out)))


def solve(name: str, budget: float) -> lines.Record:
    problem, method = name.split("-")
    settings = resolve({"problem.name": problem, **METHODS[method]})
    columns = ("step", "seconds", "loss", "l2", "step_size")
    return lines.solve_settings(name, columns, settings, budget=budget)


def table(records: dict[str, lines.Record]) -> str:
    heads = [f"{t} s" for t in TIMES]
    rows = [" | ".join(["run", *heads, "ms/step", "steps"])]
    for name, record in records.items():
        summary = record["summary"]
        errors = [f"{lines.error_at(t, record['history']):.1e}" for t in TIMES]
        speed = f"{1000 / summary['steps_per_second']:.2f}"
        rows.append(" | ".join([name, *errors, speed, f"{summary['steps']:,}"]))
    return "\n".join(rows)


if __name__ == "__main__":
    main()
