"""The time of a step against what it depends on, as a picture."""

from pathlib import Path
from typing import Any

from ..files import save_figure

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
    from matplotlib.ticker import LogLocator

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
        axis.set_xticks(size, [_short(n) for n in size])
        axis.set_xticks([], minor=True)
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("")
        axis.grid(alpha=0.3, which="both")
    axes[0][0].set_ylabel("ms per step")
    save_figure(figure, path, dpi=150)
    plt.close(figure)


def _short(number: float) -> str:
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{letter}"
    return f"{number:.3g}"
