"""From a problem to a solution: what `natpinn solve` and `natpinn.solve` do."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from . import checkpoint, cluster, records
from .config import ACTIVATIONS, Config, lookup_problem, resolve
from .display import Display
from .errors import InputError
from .models import as_model, parameter_count, trainable
from .objective import LeastSquares
from .optimizers import Optimizer
from .problem import Problem
from .problems import CATALOGUE
from .records import RunFolder
from .report import draw_solution
from .resources import Planned, plan_step, strategy
from .train import Callback, Progress, TrainResult, train


class Solution:
    """What was learned: callable at points, with the history of how it was learned."""

    def __init__(
        self,
        model: Any,
        problem: Problem | None,
        history: list[dict[str, float]],
        summary: dict[str, Any],
        config: dict[str, Any],
        last: Any = None,
    ):
        self.model = model
        self.problem = problem
        self.history = history
        self.summary = summary
        self.config = config
        self._last = last

    def __call__(self, x: Any) -> Float[Array, "..."]:
        """The values at one point (d,) or at many (n, d)."""
        x = jnp.asarray(x, dtype=jnp.float64)
        return self.model(x) if x.ndim == 1 else jax.vmap(self.model)(x)

    def __repr__(self) -> str:
        error = self.summary.get("best_relative_l2")
        quality = "" if error is None else f", relative L2 error {error:.2e}"
        return f"Solution({self.summary['problem']}, {self.summary['optimizer']}{quality})"

    def save(self, path: Path | str) -> None:
        """Write a run folder that `natpinn.load` reads."""
        folder = RunFolder(Path(path), self.config)
        for record in self.history:
            folder.append(record)
        self._write_results(folder)

    def plot(self, path: Path | str) -> None:
        """Learned, exact and error on a slice through the domain."""
        if self.problem is None:
            raise InputError("a picture needs the problem: load the run with problem=…")
        draw_solution(self.model, self.problem, path)

    def _write_results(self, folder: RunFolder) -> None:
        folder.finish(self.summary)
        checkpoint.save(folder.path / records.BEST, trainable(self.model))
        if self._last is not None:
            checkpoint.save(folder.path / records.CHECKPOINT, self._last)
        if self.problem is not None:
            self.plot(folder.path / records.PICTURE)


def solve(
    problem: Problem | str,
    model: Any = None,
    optimizer: Optimizer | str | None = None,
    *,
    steps: int | None = None,
    budget: float | None = None,
    seed: int = 0,
    stop_at: float | None = None,
    points: Mapping[str, int] | None = None,
    devices: int | str | None = None,
    memory_limit: str | int | None = None,
    out: Path | str | None = None,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
) -> Solution:
    """Solve a problem: train a network until `steps`, `budget` seconds or the error `stop_at`.

    The problem may be a name of the catalogue. Without a model it gets an MLP, without an optimizer
    the default one; an optimizer's name takes the best settings known for the problem. With neither
    steps nor budget, training takes 60 seconds. It uses one device unless told a number or "all",
    and at most the memory that is free there, or less if told "8GB".
    """
    if not isinstance(problem, Problem | str):
        raise InputError(f"a problem is a Problem or the name of one, got {problem!r}")
    if optimizer is not None and not isinstance(optimizer, Optimizer | str):
        raise InputError(
            f"an optimizer is one of natpinn's, as in spring(damping=1e-6), or its name, got "
            f"{optimizer!r}; an optax method is FirstOrder(optax.lion, {{'learning_rate': 1e-3}})"
        )
    name = problem if isinstance(problem, str) else problem.name
    given = {
        "problem.name": name,
        "optimizer.name": optimizer if isinstance(optimizer, str) else None,
        "train.steps": steps,
        "train.budget": budget,
        "train.stop_at": stop_at,
        "seed": seed,
        "compute.devices": devices,
        "compute.memory_limit": None if memory_limit is None else str(memory_limit),
        **{f"points.{key}": n for key, n in (points or {}).items()},
    }
    config = resolve(
        {key: value for key, value in given.items() if value is not None},
        None if isinstance(problem, str) else problem,
    )
    is_named = isinstance(problem, str)
    problem = config.build_problem() if is_named else config.apply_sizes(problem)
    described = config.as_dict()
    if isinstance(optimizer, Optimizer):
        described["optimizer"] = _describe(optimizer)
    else:
        optimizer = config.build_optimizer()
    if model is None:
        model = config.build_model(problem, model_key(config.seed))
    else:
        model = as_model(model)
        described["model"] = {"name": type(model).__name__}
    return run(problem, model, optimizer, config, described, out, progress, callbacks)


def run(
    problem: Problem,
    model: Any,
    optimizer: Optimizer,
    config: Config,
    described: dict[str, Any],
    out: Path | str | None,
    progress: bool,
    callbacks: Sequence[Callback] = (),
) -> Solution:
    """Train as configured, record it in a folder where one is given, and sum it up."""
    if out is not None and cluster.is_first():
        records.check_free(Path(out))
    _, train_key, evaluation_key = _keys(config.seed)
    objective, theta = problem.objective(model, problem.sample(train_key))
    planned = plan(config, objective, theta, optimizer)
    objective = objective.planned(planned.plan)
    evaluation = problem.evaluation(model, evaluation_key).planned(planned.plan)
    writes, shows = out is not None and cluster.is_first(), progress and cluster.is_first()
    folder = RunFolder(Path(out), described) if out is not None and writes else None
    display = Display() if shows else contextlib.nullcontext()

    with display:
        result = train(
            objective,
            theta,
            optimizer,
            evaluation,
            key=train_key,
            steps=config.train.steps,
            budget=config.train.budget,
            callbacks=[
                *([display] if isinstance(display, Display) else []),
                *([_recorder(folder)] if folder else []),
                *([_stopper(config.train.stop_at)] if config.train.stop_at else []),
                *callbacks,
            ],
        )
    best = eqx.combine(result.best_theta, objective.frozen)
    summary = {
        "problem": problem.name,
        "optimizer": described["optimizer"]["name"],
        "parameters": parameter_count(model),
        "points": dict(config.points),
        "devices": planned.plan.devices,
        "strategy": strategy(planned),
        **_outcome(result),
        **records.machine(),
    }
    solution = Solution(best, problem, result.history, summary, described, result.state)
    if folder is not None:
        solution._write_results(folder)
    return solution


def plan(
    config: Config,
    objective: LeastSquares,
    theta: Any,
    optimizer: Optimizer,
    always_compile: bool = False,
) -> Planned:
    """How a run is computed under the configured limits."""
    limit, devices = config.memory_limit, config.compute.devices
    return plan_step(objective, theta, optimizer, limit, devices, always_compile)


def load(path: Path | str, like: Any = None, problem: Problem | None = None) -> Solution:
    """A solution from its run folder; `like` is a model of the shape that was trained.

    Without `like` the model is rebuilt from the configuration; so is a problem of the catalogue.
    """
    folder = Path(path)
    described = records.read_config(folder)
    rebuilt = _rebuild_problem(described) if problem is None else problem
    if like is None:
        like = _rebuild_model(described, rebuilt)
    theta, frozen = eqx.partition(as_model(like), eqx.is_inexact_array)
    model = eqx.combine(checkpoint.restore(folder / records.BEST, theta), frozen)
    history, summary = records.read_history(folder), records.read_summary(folder)
    return Solution(model, rebuilt, history, summary, described)


def model_key(seed: int) -> Array:
    return _keys(seed)[0]


def _keys(seed: int) -> Array:
    """The keys of a run: for the model, for training, for the evaluation."""
    return jax.random.split(jax.random.key(seed), 3)


def _recorder(folder: RunFolder) -> Callback:
    def record(progress: Progress) -> None:
        if progress.evaluated:
            folder.append(progress.metrics)

    return record


def _stopper(stop_at: float) -> Callback:
    return lambda progress: progress.evaluated and progress.metrics[progress.criterion] <= stop_at


def _outcome(result: TrainResult) -> dict[str, Any]:
    """The part of a summary that says how training went."""
    last = result.history[-1]
    outcome: dict[str, Any] = {
        "steps": int(result.state.step),
        "seconds": result.seconds,
        "compile_seconds": result.compile_seconds,
        "steps_per_second": int(result.state.step) / result.seconds if result.seconds else 0.0,
        "status": result.status,
        "message": result.message,
    }
    names = {"l2_error": "l2", "relative_l2_error": "relative_l2", "validation_loss": "loss"}
    for key, name in names.items():
        values = [record[key] for record in result.history if record.get(key) is not None]
        outcome[f"best_{name}"] = min((v for v in values if v == v), default=None)
        outcome[f"final_{name}"] = last.get(key)
    return outcome


def _describe(optimizer: Optimizer) -> dict[str, Any]:
    """The parts and numbers of an optimizer that was built in Python."""
    fields = vars(optimizer).items()
    parts = {name: type(part).__name__ for name, part in fields if isinstance(part, eqx.Module)}
    numbers = checkpoint.named_arrays(eqx.filter(optimizer, eqx.is_inexact_array))
    return {
        "name": type(optimizer).__name__,
        **parts,
        **{name: value.tolist() for name, value in numbers.items()},
    }


def _rebuild_problem(described: dict[str, Any]) -> Problem | None:
    """A problem of the catalogue; a user's own is code, which loading does not run."""
    name = described["problem"]["name"]
    return lookup_problem(name, described["problem"]["dimension"]) if name in CATALOGUE else None


def _rebuild_model(described: dict[str, Any], problem: Problem | None) -> Any:
    table = described["model"]
    if problem is None:
        raise InputError(
            f"the problem of this run ({described['problem']['name']}) is code of your own, which "
            f"load does not run: pass it as problem=, and a model of your own as like="
        )
    if table["name"] != "mlp":
        raise InputError(f"pass a model like the one that was trained ({table['name']}) as like=")
    activation = ACTIVATIONS[table["activation"]]
    return problem.default_model(jax.random.key(0), tuple(table["widths"]), activation)
