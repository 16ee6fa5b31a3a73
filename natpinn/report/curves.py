"""Loss, error and effective dimension of runs as figures for print."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..files import save_figure
from .runs import Curve, Run, by_problem

FORMATS = ("pdf", "png", "svg")
KINDS = {"error": "L2 error", "loss": "loss", "effective_dimension": "effective dimension"}
LABELS = {"seconds": "seconds of training", "step": "steps"}
STYLE: dict[Any, Any] = {"font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "legend.fontsize": 8}
UNSAFE = re.compile(r"[^\w.-]")  # in the name of a file
LONGEST = 100  # letters of a problem in the name of a file
LEGEND_LINE = 0.17  # inches
LETTERS = 15  # of a legend, per inch


def draw_curves(
    runs: Sequence[Run],
    folder: Path,
    formats: Sequence[str] = ("pdf", "png"),
    published: Sequence[Curve] = (),
) -> list[Path]:
    """For each problem its error and its loss, over time and over steps; published ones dashed."""
    import matplotlib as mpl

    for name in formats:
        if name not in FORMATS:
            raise InputError(f"figures are written as {', '.join(FORMATS)}, got {name!r}")
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with mpl.rc_context(STYLE):
            for problem, group in by_problem(runs).items():
                others = [curve for curve in published if curve.problem == problem]
                for kind in KINDS:
                    figure = _draw(problem, group, others, kind)
                    for name in formats if figure else ():
                        path = _free(folder, problem, f"-{kind}.{name}", written)
                        save_figure(figure, path, dpi=200)
                        written.append(path)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from error
    return written


def _free(folder: Path, problem: str, end: str, taken: Sequence[Path]) -> Path:
    """A file for a problem, whose name may have any letters and any length."""
    stem = UNSAFE.sub("_", problem)[:LONGEST]
    paths = (folder / f"{stem}{number or ''}{end}" for number in itertools.count())
    return next(path for path in paths if path not in taken)


def _draw(problem: str, runs: Sequence[Run], published: Sequence[Curve], kind: str) -> Any:
    from matplotlib.figure import Figure

    shown = [run for run in runs if getattr(run.curve, kind)]
    if not shown:
        return None
    axes_of = ["step"] if kind == "effective_dimension" else ["seconds", "step"]
    figure = Figure(figsize=(3.5 * len(axes_of), 2.9), layout="constrained")
    axes = figure.subplots(1, len(axes_of), sharey=True, squeeze=False)[0]
    methods = list(dict.fromkeys(run.method for run in shown))
    colors = {method: f"C{i % 10}" for i, method in enumerate(methods)}
    of_optimizer = {run.config.get("optimizer.name"): colors[run.method] for run in reversed(shown)}
    for axis, along in zip(axes, axes_of, strict=True):
        labelled = set()
        for run in shown:
            label = None if run.method in labelled else _plain(run.method)
            labelled.add(run.method)
            x, y = np.array(getattr(run.curve, along)), np.array(getattr(run.curve, kind))
            if kind == "effective_dimension":  # which not every evaluation has
                x, y = x[np.isfinite(y)], y[np.isfinite(y)]
            axis.plot(x, y, color=colors[run.method], lw=1.3, label=label)
        for curve in published if kind != "effective_dimension" else ():
            color = of_optimizer.setdefault(curve.optimizer, f"C{len(of_optimizer) % 10}")
            label = _plain(f"published {curve.name}")
            x, y = getattr(curve, along), getattr(curve, kind)
            axis.plot(x, y, color=color, lw=1.0, ls="--", label=label)
        axis.set_xscale("log", nonpositive="mask")
        axis.set_xlabel(LABELS[along])
        if kind != "effective_dimension":
            axis.set_yscale("log", nonpositive="mask")
    if kind == "effective_dimension":
        axes[0].set_ylim(bottom=0)
    axes[0].set_ylabel(shown[0].criterion if kind == "error" else KINDS[kind])
    figure.suptitle(_plain(problem), fontsize=9)
    handles, labels = axes[0].get_legend_handles_labels()
    longest = max(map(len, labels)) + 7  # with its line
    columns = max(1, min(len(labels), int(LETTERS * figure.get_figwidth() / longest)))
    lines = -(-len(labels) // columns)
    figure.set_figheight(2.7 + LEGEND_LINE * lines)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _plain(text: str) -> str:
    """A text in which Matplotlib sees no mathematics between dollar signs, and only letters."""
    return text.encode("utf-8", "backslashreplace").decode().replace("$", r"\$")
