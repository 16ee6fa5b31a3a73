"""What was learned, in memory and on disk."""

import shlex
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from ..errors import InputError, NatpinnWarning
from ..files import save_figure
from ..models.theta import as_model, numbers
from ..pictures.solution import draw_solution
from ..precision import computing, rounded
from ..problems.problem import Problem
from ..training.record import Record
from . import checkpoint
from .checkpoint import Checkpoint
from .folder import Results, RunFolder
from .recorded import Recorded
from .records import BEST, SUMMARY, read_history, read_summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Solution:
    """What was learned: callable at points, with the history of how it was learned.

    `natpinn.solve`, `natpinn.load` and `natpinn.resume` return it.

    - `model`: the parameters of the smallest loss on points that no step has seen, in the model
      that was trained.
    - `problem`: what was solved; None where a folder was loaded without it.
    - `history`: one record for each evaluation, with `step`, `seconds` of training, `loss`,
      `validation_loss`, `l2` and `relative_l2` (where the solution is known), and more.
    - `summary`: the outcome: `status`, `relative_l2` of the model, `steps`, `seconds` and more.
    - `config`: all settings, as in `config.toml`.
    - `folder`: where the run was written; None where it was not.

        import natpinn

        solution = natpinn.solve("poisson_2d", steps=3, progress=False)
        print(solution([0.5, 0.5]), solution.summary["relative_l2"])
    """

    def __init__(
        self,
        model: Any,
        problem: Problem | None,
        history: Sequence[Mapping[str, float]],
        summary: Mapping[str, Any],
        config: dict[str, Any],
        checkpoint: Checkpoint | None = None,
    ):
        self.model = model
        self.problem = problem
        self.history = [Record(record) for record in history]
        self.summary = Record(summary)
        self.config = config
        self.folder: Path | None = None
        self._checkpoint = checkpoint

    def __call__(self, x: "ArrayLike") -> Float[Array, "..."]:
        """The values at one point (d,) or at many (n, d)."""
        x = jnp.asarray(x, dtype=jnp.float64)
        if x.ndim not in (1, 2):
            raise InputError(
                f"a solution is evaluated at one point, of shape (d,), or at many, (n, d), "
                f"got {x.shape}"
            )
        return self.model(x) if x.ndim == 1 else jax.vmap(self.model)(x)

    def __repr__(self) -> str:
        error = self.summary.get("relative_l2", self.summary.get("best_relative_l2"))
        quality = "" if error is None else f", relative L2 error {error:.2e}"
        return f"Solution({self.summary['problem']}, {self.summary['optimizer']}{quality})"

    def save(self, path: Path | str) -> None:
        """Write a run folder that `natpinn.load` reads.

        `natpinn.resume` goes on with it, unless this solution was itself loaded.

        **Arguments:** `path`, a folder that is not there yet, or is empty.

        **Raises:** `InputError` where the folder holds something else or cannot be written.

            import natpinn

            solution = natpinn.solve("poisson_2d", steps=3, progress=False)
            solution.save("mine")
            again = natpinn.load("mine")
        """
        folder = RunFolder(Path(path))
        folder.begin(self.config, self.history)
        folder.finish(self.results)

    def plot(self, path: Path | str | None = None) -> "Figure":
        """Draw the learned solution, the exact one and the error on a slice through the domain.

        In one dimension these are curves. In more they are maps of the first two coordinates, with
        the others at the middle of the domain.

        **Arguments:** `path`, a file for the picture, as `solution.png`. Default: none is written.

        **Returns:** the Matplotlib figure, which a notebook shows.

        **Raises:** `InputError` where the solution was loaded without its problem, or where the
        file cannot be written.

            import natpinn

            natpinn.solve("poisson_2d", steps=3, progress=False).plot("solution.png")
        """
        if self.problem is None:
            raise InputError("a picture needs the problem: load the run with problem=…")
        figure = draw_solution(self.model, self.problem)
        if path is not None:
            save_figure(figure, path)
        return figure

    @property
    def results(self) -> Results:
        """What a run folder holds beside its settings and metrics."""
        draw = None if self.problem is None else self.plot
        return Results(self.summary, numbers(self.model), self._checkpoint, draw)


def load(path: Path | str, like: Any = None, problem: Problem | None = None) -> Solution:
    """The solution that a run folder holds. Nothing in the folder is run.

    **Arguments:**

    - `path`: the folder of a run that has ended. One that was killed has no result yet:
      `natpinn.resume` goes on with it.
    - `like`: a model like the one that was trained, if that was not natpinn's own. Only the shapes
      of its arrays count: what they hold is read, constants too. Default: natpinn's own network.
    - `problem`: the problem, if it is not one of the catalogue. Default: the one that the folder
      names.

    **Returns:** the `Solution`.

    **Raises:** `InputError` where files are missing or damaged, where the model or the problem is
    code of your own and was not passed, and where they do not fit what was learned.

        import natpinn

        natpinn.solve("poisson_2d", steps=3, out="run", progress=False)
        solution = natpinn.load("run")
        print(solution([0.5, 0.5]))
    """
    folder = Path(path)
    recorded = Recorded.read(folder)
    problem = recorded.problem() if problem is None else problem
    like = recorded.model(problem) if like is None else like
    if not (folder / SUMMARY).exists():
        raise InputError(
            f"{folder} has no summary yet: the run is going on, or was killed, and then `natpinn "
            f"resume {shlex.quote(str(folder))}` goes on with it"
        )
    like = as_model(like)
    with computing(recorded.precision):
        found = checkpoint.read(folder / BEST, numbers(rounded(like)))
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found) if _is_float(leaf)):
        message = f"the parameters in {folder / BEST} are not all finite"
        warnings.warn(message, NatpinnWarning, stacklevel=2)
    model = eqx.combine(found, like)
    if problem is not None:
        _check_fit(model, problem)
    history, summary = read_history(folder), read_summary(folder)
    return Solution(model, problem, history, summary, recorded.tables)


def _is_float(leaf: Any) -> bool:
    return leaf.dtype.kind in "fc"


def _check_fit(model: Any, problem: Problem) -> None:
    """The model takes points of the problem, and returns as many values as its solution."""
    point, exact = problem.domain.bounds[0], problem.solution
    remedy = "load the run with the problem that it solved"
    try:
        values = jax.eval_shape(model, point)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the model cannot be evaluated in {problem.name}, whose points have {point.size} "
            f"coordinates: {remedy}"
        ) from error
    if exact is not None and (wanted := jax.eval_shape(exact, point)).size != values.size:
        raise InputError(
            f"the model has {values.size} values, and the solution of {problem.name} has "
            f"{wanted.size}: {remedy}"
        )
