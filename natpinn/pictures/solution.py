"""What was learned beside the exact solution and the error, on a slice through the domain."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..domains.base import Domain
from ..equations.operators import Field
from ..problems.problem import Problem

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS_1D, POINTS_2D = 400, 120


def draw_solution(model: Any, problem: Problem) -> "Figure":
    """One row per value of the model; in 1-d curves, in more dimensions maps of the first two.

    The other coordinates stay at the middle of the domain.
    """
    from matplotlib.figure import Figure  # no pyplot: no state, no screen

    lower, upper = (np.asarray(corner) for corner in problem.domain.bounds)
    is_line = lower.size == 1
    points = np.linspace(lower, upper, POINTS_1D) if is_line else _plane(lower, upper)
    is_shown = _shown(problem, points)
    learned = np.where(is_shown, _values(model, points), np.nan)
    exact = None
    if problem.solution is not None:
        exact = np.where(is_shown, _values(problem.solution, points), np.nan)

    rows, columns = learned.shape[-1], 1 if exact is None else 3
    names, named = problem.coordinate_names, problem.names.of_values(rows)
    figure = Figure(figsize=(4.2 * columns, 3.4 * rows), layout="constrained", dpi=130)
    axes = figure.subplots(rows, columns, squeeze=False)
    for i in range(rows):
        suffix = f" {named[i]}" if rows > 1 else ""
        panels = {"learned": learned[..., i]}
        if exact is not None:
            panels |= {"exact": exact[..., i], "error": learned[..., i] - exact[..., i]}
        for axis, (title, values) in zip(axes[i], panels.items(), strict=True):
            axis.set_title(title + suffix)
            axis.set_xlabel(names[0])
            axis.set_ylabel(named[i] if is_line else names[1])
            if is_line:
                _curve(axis, points[:, 0], values, title)
            else:
                _map(figure, axis, values, lower, upper, title, panels.get("exact"))
    figure.suptitle(f"{problem.label}{_elsewhere(names, lower, upper)}")
    return figure


def _plane(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Points on the plane of the first two coordinates through the middle of the box."""
    first, second = (np.linspace(lower[i], upper[i], POINTS_2D) for i in (0, 1))
    points = np.tile((lower + upper) / 2, (POINTS_2D, POINTS_2D, 1))
    points[..., 0], points[..., 1] = first[None, :], second[:, None]
    return points


def _shown(problem: Problem, points: np.ndarray) -> np.ndarray:
    """Which points are in the domain; all of them, where the slice passes by a union."""
    found = np.asarray(_covered(problem.domain, _flat(points)))
    return (found | (not found.any())).reshape(*points.shape[:-1], 1)


@eqx.filter_jit
def _covered(domain: Domain, points: Float[Array, "n d"]) -> Bool[Array, " n"]:
    return jax.vmap(domain.covers)(points)


def _flat(points: np.ndarray) -> Float[Array, "n d"]:
    return jnp.asarray(points.reshape(-1, points.shape[-1]))


def _values(function: Field, points: np.ndarray) -> np.ndarray:
    """The function at an array of points, with one last axis for its values."""
    values = np.asarray(_at_points(function, _flat(points)))
    return values.reshape(*points.shape[:-1], -1)


@eqx.filter_jit  # one program for all models of a kind
def _at_points(function: Field, points: Float[Array, "n d"]) -> Float[Array, "n m"]:
    return jax.vmap(lambda x: jnp.atleast_1d(function(x)))(points)


def _curve(axis: "Axes", x: np.ndarray, values: np.ndarray, title: str) -> None:
    axis.plot(x, values, color="C3" if title == "error" else "C0")
    axis.grid(alpha=0.3)
    axis.ticklabel_format(axis="y", scilimits=(-2, 3))


def _map(
    figure: Any,
    axis: "Axes",
    values: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    title: str,
    exact: np.ndarray | None,
) -> None:
    if title == "error":
        largest = np.nanmax(np.abs(values)) or 1.0
        limits, colours = (-largest, largest), "RdBu_r"
    else:  # learned and exact share one scale
        shown = values if exact is None else exact
        limits, colours = (np.nanmin(shown), np.nanmax(shown)), "viridis"
    extent = (lower[0], upper[0], lower[1], upper[1])
    image = axis.imshow(
        values,
        origin="lower",
        extent=extent,
        aspect="auto",
        cmap=colours,
        vmin=limits[0],
        vmax=limits[1],
    )
    bar = figure.colorbar(image, ax=axis)
    bar.formatter.set_powerlimits((-2, 3))


def _elsewhere(names: Sequence[str], lower: np.ndarray, upper: np.ndarray) -> str:
    """Where the slice lies in the coordinates that are not drawn."""
    if len(names) <= 2:
        return ""
    middle = (lower + upper) / 2
    if len(set(middle[2:])) == 1:
        last = names[2] if len(names) == 3 else f"{names[2]} … {names[-1]}"
        return f"   ({last} = {middle[2]:g})"
    return "   (other coordinates at the middle of the domain)"
