"""The time of a step against what it depends on, as a picture."""

from pathlib import Path
from typing import Any

LABELS = {
    "rows": "rows N",
    "parameters": "parameters P",
    "dimension": "dimension d",
    "devices": "devices",
}


def draw_scaling(result: dict[str, Any], path: Path | str) -> None:
    """One log-log panel for each quantity, with its exponent and the line that was fitted."""
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(
        1, len(result), figsize=(3.4 * len(result), 3), squeeze=False, layout="constrained"
    )
    for axis, (name, series) in zip(axes[0], result.items(), strict=True):
        size = np.array([step[name] for step in series["steps"]])
        time = np.array([1000 * step["step_seconds"] for step in series["steps"]])
        axis.loglog(size, time, "o", color="#1f5fa8")
        if series["exponent"] is not None:
            fit = time[-1] * (size / size[-1]) ** series["exponent"]
            axis.loglog(
                size, fit, "-", color="#1f5fa8", alpha=0.5, label=f"{series['exponent']:.2f}"
            )
            axis.legend(title="exponent", frameon=False)
        axis.set_xlabel(LABELS[name])
        axis.grid(alpha=0.3, which="both")
    axes[0][0].set_ylabel("ms per step")
    figure.savefig(path, dpi=150)
    plt.close(figure)
