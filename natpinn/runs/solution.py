"""What was learned, in memory and on disk."""

import shlex
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..errors import InputError, NatpinnWarning
from ..models.theta import as_model, numbers
from ..pictures.solution import draw_solution
from ..problems.catalogue import CATALOGUE
from ..problems.problem import Problem
from . import checkpoint
from .checkpoint import Checkpoints
from .folder import RunFolder
from .own_code import lookup_problem
from .records import (
    BEST,
    CHECKPOINT,
    PICTURE,
    SUMMARY,
    read_config,
    read_history,
    read_summary,
    write_summary,
)
from .resolve import check_format, resolve
from .settings import flatten

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Solution:
    """What was learned: callable at points, with the history of how it was learned."""

    def __init__(
        self,
        model: Any,
        problem: Problem | None,
        history: list[dict[str, float]],
        summary: dict[str, Any],
        config: dict[str, Any],
        checkpoint: Any = None,
    ):
        self.model = model
        self.problem = problem
        self.history = history
        self.summary = summary
        self.config = config
        self.folder: Path | None = None  # where the run was written
        self._checkpoint = checkpoint

    def __call__(self, x: Any) -> Float[Array, "..."]:
        """The values at one point (d,) or at many (n, d)."""
        x = jnp.asarray(x, dtype=jnp.float64)
        if x.ndim not in (1, 2):
            raise InputError(
                f"a solution is evaluated at one point, of shape (d,), or at many, (n, d), "
                f"got {x.shape}"
            )
        return self.model(x) if x.ndim == 1 else jax.vmap(self.model)(x)

    def __repr__(self) -> str:
        error = self.summary.get("best_relative_l2")
        quality = "" if error is None else f", relative L2 error {error:.2e}"
        return f"Solution({self.summary['problem']}, {self.summary['optimizer']}{quality})"

    def save(self, path: Path | str) -> None:
        """Write a run folder that `natpinn.load` reads.

        `natpinn.resume` goes on with it, unless this solution was itself loaded.
        """
        folder = RunFolder(Path(path))
        folder.begin(self.config, self.history)
        folder.finish(self.write_results)

    def plot(self, path: Path | str | None = None) -> "Figure":
        """Learned, exact and error on a slice through the domain, in a file if one is named.

        A notebook shows the Matplotlib figure that is returned.
        """
        if self.problem is None:
            raise InputError("a picture needs the problem: load the run with problem=…")
        figure = draw_solution(self.model, self.problem)
        if path is not None:
            figure.savefig(path)
        return figure

    def write_results(self, path: Path) -> None:
        """What a run folder holds beside its settings and metrics; the summary says it is whole."""
        if self._checkpoint is not None:
            checkpoints = Checkpoints(path / CHECKPOINT)
            checkpoints.start(int(self._checkpoint["snapshot"].state.step), self._checkpoint)
            checkpoints.finish()
        checkpoint.write(path / BEST, numbers(self.model))
        write_summary(path, self.summary)
        if self.problem is not None:
            try:
                self.plot(path / PICTURE)
            except Exception as error:  # a picture is no reason to fail a run
                reason = str(error).split("\n")[0]
                warnings.warn(f"no picture was drawn: {reason}", NatpinnWarning, stacklevel=2)


def load(path: Path | str, like: Any = None, problem: Problem | None = None) -> Solution:
    """A solution from its run folder; `like` is a model like the one that was trained.

    Its arrays need the same shapes only: what they hold is read, constants too.

    Without `like` the model is rebuilt from the configuration; so is a problem of the catalogue.
    Nothing in the folder is run: code of your own is what you pass. A run that was killed has no
    result; `natpinn.resume` goes on with it.
    """
    folder = Path(path)
    described = read_config(folder)
    check_format(described)
    if problem is None:
        problem = rebuild_problem(described)
    if like is None:
        like = rebuild_model(described, problem)
    if not (folder / SUMMARY).exists():
        raise InputError(
            f"{folder} has no summary yet: the run is going on, or was killed, and then `natpinn "
            f"resume {shlex.quote(str(folder))}` goes on with it"
        )
    like = as_model(like)
    model = eqx.combine(checkpoint.read(folder / BEST, numbers(like)), like)
    if problem is not None:
        _check_fit(model, problem)
    history, summary = read_history(folder), read_summary(folder)
    return Solution(model, problem, history, summary, described)


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


def rebuild_problem(described: Mapping[str, Any]) -> Problem | None:
    """A problem of the catalogue; a user's own is code, which a run folder does not run."""
    table = section(described, "problem")
    name = str(table.get("name"))
    if name not in CATALOGUE or table.get("own"):
        return None
    return lookup_problem(name, table.get("dimension"))


def rebuild_model(described: Mapping[str, Any], problem: Problem | None) -> Any:
    table = section(described, "model")
    if problem is None:
        raise InputError(
            f"the problem of this run ({section(described, 'problem').get('name')}) is code of "
            f"your own, which load does not run: pass it as problem=, and a model of your own as "
            f"like="
        )
    if table.get("name") != "mlp":
        raise InputError(
            f"pass a model like the one that was trained ({table.get('name')}) as like="
        )
    config = resolve({"problem.name": problem.name, **flatten({"model": table})}, problem)
    return config.build_model(problem, jax.random.key(0))


def section(described: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A table of a configuration that may be anyone's."""
    table = described.get(name)
    if not isinstance(table, Mapping):
        raise InputError(f"the configuration of this run has no table [{name}]: it is damaged")
    return table
