"""The effective dimension during training: ENGD-W on poisson_5d, SPRING on poisson_100d.

python benchmarks/effective_dimension.py --out runs.jsonl [NAME …]
python benchmarks/effective_dimension.py --out runs.jsonl --draw effective_dimension.png
"""

from pathlib import Path

import lines
import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

OPTIMIZERS = {"poisson_5d": "engd_w", "poisson_100d": "spring"}
TRACKED = ("effective_dimension", "largest_eigenvalue")


def main() -> None:
    parser = lines.parser(__doc__, list(OPTIMIZERS), 20.0)
    parser.add_argument("--draw", type=Path, help="draw the runs of the file instead")
    arguments = parser.parse_args()
    if arguments.draw is not None:
        draw(lines.read(arguments.out), arguments.draw)
        return
    for problem in arguments.names or OPTIMIZERS:
        record = lines.solve(
            problem,
            ("step", "seconds", "l2", "damping", *TRACKED),
            problem,
            optimizer=OPTIMIZERS[problem],
            budget=arguments.budget,
            track=TRACKED,
        )
        lines.append(arguments.out, record)
        last = record["history"][-1]
        print(f"{problem}: {last['effective_dimension']:.1f} after {last['step']} steps")


def draw(records: dict[str, lines.Record], path: Path) -> None:
    figure, axes = plt.subplots(1, len(OPTIMIZERS), figsize=(9, 3.6), layout="constrained")
    for (problem, optimizer), axis in zip(OPTIMIZERS.items(), axes, strict=True):
        history = records[problem]["history"][1:]
        rows = sum(records[problem]["summary"]["points"].values())
        shares = [r["effective_dimension"] / rows for r in history]
        axis.semilogx([r["step"] for r in history], shares)
        axis.axhline(0.5, color="gray", lw=0.8, ls="--")
        axis.set(
            title=f"{problem}, {optimizer}, N = {rows:,}",
            xlabel="steps",
            ylabel="effective dimension / N",
            ylim=(0, 1.05),
        )
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
