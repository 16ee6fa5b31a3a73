"""One run, from a problem to a solution: what `natpinn solve` and `natpinn resume` do."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array

from ..errors import InputError
from ..least_squares.objective import LeastSquares
from ..machine import machine
from ..memory import show_bytes
from ..models.theta import Theta, as_model, numbers, parameter_count
from ..optimizers.base import Optimizer
from ..parallel import processes as cluster
from ..parallel.devices import make_mesh
from ..parallel.plan import Plan
from ..planning import batch_size as batch
from ..planning.explain import strategy
from ..planning.planned import Planned, keep_plan, plan_step, smaller_limit
from ..problems.problem import Problem
from ..training.cache import use_compilation_cache
from ..training.loop import Callback, Progress, Snapshot, TrainResult, check_tracking, train
from ..training.signals import Interrupts, say
from .checkpoint import named_arrays
from .config import Config
from .display import Display
from .folder import RunFolder, check_free
from .resolve import resolve
from .solution import Solution
from .trackers import Trackers


@dataclass(frozen=True)
class Parts:
    """What a run is made of."""

    problem: Problem
    model: Any
    optimizer: Optimizer
    config: Config
    described: dict[str, Any]  # the configuration as it is recorded
    objective: LeastSquares
    theta: Theta

    @classmethod
    def make(
        cls,
        problem: Problem,
        model: Any,
        optimizer: Optimizer,
        config: Config,
        described: dict[str, Any],
    ) -> "Parts":
        check_tracking(config.tracking, optimizer)
        make_mesh(config.compute.devices)  # which are there
        objective, theta = problem.objective(model, problem.sample(_keys(config.seed)[1]))
        return cls(problem, model, optimizer, config, described, objective, theta)

    @property
    def constants(self) -> Any:
        """The arrays of the model that are not trained."""
        return numbers(self.objective.frozen)


@dataclass(frozen=True)
class Earlier:
    """What there is of a run that goes on."""

    folder: RunFolder | None  # already locked, by the process that writes
    snapshot: Snapshot | None  # None: it was killed before its first checkpoint
    history: list[dict[str, float]]
    plan: Plan | None


def solve(
    problem: Problem | str,
    model: Any = None,
    optimizer: Optimizer | str | None = None,
    *,
    steps: int | None = None,
    budget: float | None = None,
    seed: int = 0,
    stop_at: float | None = None,
    points: Mapping[str, int | None] | None = None,
    steps_per_batch: int | None = None,
    devices: int | str | None = None,
    memory_limit: str | int | None = None,
    out: Path | str | None = None,
    checkpoint_seconds: float | None = None,
    track: Sequence[str] = (),
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
) -> Solution:
    """Solve a problem: train a network until `steps`, `budget` seconds or the error `stop_at`.

    The problem may be a name of the catalogue. Without a model it gets an MLP, without an optimizer
    the default one; an optimizer's name takes the best settings known for the problem. With neither
    steps nor budget, training takes 60 seconds. Points are drawn anew at every step, or after
    `steps_per_batch`; `points` says how many, or None for what suits this machine. It uses one
    device unless told a number or "all", and at most the memory that is free there, or less if told
    "8GB". The folder `out` records the run, with a checkpoint every 60 seconds or as told, from
    which `natpinn.resume` goes on; `track` names what of the kernel's spectrum is recorded, as
    "effective_dimension".
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
        "sampling.steps_per_batch": steps_per_batch,
        "compute.devices": devices,
        "compute.memory_limit": None if memory_limit is None else str(memory_limit),
        "checkpoint.every_seconds": checkpoint_seconds,
        "track.quantities": list(track) or None,
        **{f"points.{key}": "none" if n is None else n for key, n in (points or {}).items()},
    }
    config = resolve(
        {key: value for key, value in given.items() if value is not None},
        None if isinstance(problem, str) else problem,
    )
    parts = assemble(
        config,
        problem if isinstance(problem, Problem) else None,
        model,
        optimizer if isinstance(optimizer, Optimizer) else None,
    )
    return run(parts, out, progress, callbacks)


def assemble(
    config: Config,
    problem: Problem | None = None,
    model: Any = None,
    optimizer: Optimizer | None = None,
) -> Parts:
    """What a configuration describes, with objects in place of what it has names for."""
    use_compilation_cache()
    is_own = problem is not None and not problem.is_catalogued
    problem = config.build_problem() if problem is None else config.apply_sizes(problem)
    has_own_model = model is not None
    key = model_key(config.seed)
    model = as_model(model) if has_own_model else config.build_model(problem, key)
    method = config.build_optimizer() if optimizer is None else optimizer
    problem = problem.with_points(batch.propose(problem, model, method, config.memory_limit))
    config = replace(config, points={name: c.points for name, c in problem.conditions.items()})

    described = config.as_dict()
    described["problem"]["own"] = is_own
    if optimizer is not None:
        described["optimizer"] = describe(optimizer)
    if has_own_model or config.model.name != "mlp":
        described["model"] = {"name": type(model).__name__ if has_own_model else config.model.name}
    return Parts.make(problem, model, method, config, described)


def run(
    parts: Parts,
    out: Path | str | None,
    progress: bool,
    callbacks: Sequence[Callback] = (),
    earlier: Earlier | None = None,
) -> Solution:
    """Train as configured, record it in a folder where one is given, and sum it up."""
    config, is_first = parts.config, cluster.is_first()
    path = None if out is None else Path(out)
    if path is not None and is_first and earlier is None:
        check_free(path)
    planned = _plan(parts, earlier)
    objective = parts.objective.planned(planned.plan)
    _, train_key, evaluation_key = _keys(config.seed)
    evaluation = parts.problem.evaluation(parts.model, evaluation_key).planned(planned.plan)

    folder, history = None, [] if earlier is None else earlier.history
    if path is not None and is_first:
        folder = (earlier.folder if earlier else None) or RunFolder(path)
        folder.begin(parts.described, history)
    display = Display() if progress and is_first else None
    if display and earlier is None and (advice := batch.advise(parts.problem, planned.size)):
        say(advice)
    own = [
        *([display] if display else []),
        *([_recorder(folder), _saver(folder, planned.plan, parts)] if folder else []),
        *([_stopper(config.train.stop_at)] if config.train.stop_at else []),
    ]
    try:
        trackers = _trackers(parts, path, earlier) if is_first else None
        own += [trackers] if trackers else []
        with Interrupts():  # until what was reached is written
            with display or contextlib.nullcontext():
                result = train(
                    objective,
                    parts.theta,
                    parts.optimizer,
                    evaluation,
                    key=train_key,
                    steps=config.train.steps,
                    budget=config.train.budget,
                    callbacks=[*own, *callbacks],
                    resume=None if earlier is None else earlier.snapshot,
                    history=history,
                    steps_per_batch=config.sampling.steps_per_batch,
                    tracking=config.tracking,
                )
            solution = _sum_up(parts, planned, result, folder)
            if trackers is not None:
                trackers.finish(solution.summary)
            return solution
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise _out_of_memory(planned) from error
    finally:
        if folder is not None:
            folder.close()


def plan(parts: Parts, always_compile: bool = False) -> Planned:
    """How a run is computed under the configured limits."""
    limit, devices = parts.config.memory_limit, parts.config.compute.devices
    return plan_step(parts.objective, parts.theta, parts.optimizer, limit, devices, always_compile)


def model_key(seed: int) -> Array:
    return _keys(seed)[0]


def _keys(seed: int) -> Array:
    """The keys of a run: for the model, for training, for the evaluation."""
    return jax.random.split(jax.random.key(seed), 3)


def _plan(parts: Parts, earlier: Earlier | None) -> Planned:
    """The plan that a run had before, since another one would round differently; or a new one."""
    if earlier is None or earlier.plan is None:
        return plan(parts)
    return keep_plan(parts.objective, parts.theta, parts.optimizer, earlier.plan)


def _trackers(parts: Parts, path: Path | None, earlier: Earlier | None) -> Trackers | None:
    """Where else records go, from the step on that the run is at."""
    names = parts.config.track.trackers
    snapshot = earlier.snapshot if earlier else None
    step = 0 if snapshot is None else int(snapshot.state.step)
    return Trackers(names, path, parts.described, step) if names else None


def _recorder(folder: RunFolder) -> Callback:
    def record(progress: Progress) -> None:
        if progress.evaluated:
            folder.append(progress.metrics)

    return record


def _saver(folder: RunFolder, plan: Plan, parts: Parts) -> Callback:
    """Writes checkpoints, in the background and from time to time."""
    every = parts.config.checkpoint.every_seconds
    last = time.monotonic()

    def save(progress: Progress) -> None:
        nonlocal last
        if every is None or time.monotonic() - last < every:
            return
        last = time.monotonic()
        folder.checkpoint(progress.step, _checkpoint(progress.snapshot, plan, parts))

    return save


def _checkpoint(snapshot: Snapshot, plan: Plan, parts: Parts) -> dict[str, Any]:
    return {"snapshot": snapshot, "plan": plan.packed(), "constants": parts.constants}


def _stopper(stop_at: float) -> Callback:
    return lambda progress: progress.evaluated and progress.metrics[progress.criterion] <= stop_at


def _sum_up(
    parts: Parts, planned: Planned, result: TrainResult, folder: RunFolder | None
) -> Solution:
    summary = {
        "problem": parts.problem.name,
        "optimizer": parts.described["optimizer"]["name"],
        "parameters": parameter_count(parts.model),
        "points": dict(parts.config.points),
        "devices": planned.plan.devices,
        "strategy": strategy(planned),
        **_outcome(result),
        **machine(),
    }
    model = eqx.combine(result.best_theta, parts.objective.frozen)
    last = _checkpoint(result.snapshot, planned.plan, parts)
    solution = Solution(model, parts.problem, result.history, summary, parts.described, last)
    if folder is not None:
        solution.folder = folder.finish(solution.write_results)
    return solution


def _outcome(result: TrainResult) -> dict[str, Any]:
    """The part of a summary that says how training went."""
    last, steps = result.history[-1], int(result.state.step)
    outcome: dict[str, Any] = {
        "steps": steps,
        "training_loss": last.get("loss"),  # of the last batch
        "seconds": result.seconds,
        "compile_seconds": result.compile_seconds,
        "tracking_seconds": result.tracking_seconds,
        "steps_per_second": steps / result.seconds if result.seconds else 0.0,
        "rejected_steps": int(result.state.events.rejected),
        "recovered_steps": int(result.state.events.recovered),
        "status": result.status,
        "message": result.message,
    }
    names = {"l2_error": "l2", "relative_l2_error": "relative_l2", "validation_loss": "loss"}
    for key, name in names.items():
        values = [record[key] for record in result.history if record.get(key) is not None]
        outcome[f"best_{name}"] = min((v for v in values if v == v), default=None)
        outcome[f"final_{name}"] = last.get(key)
    return outcome


def is_out_of_memory(error: Exception) -> bool:
    return "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error)


def _out_of_memory(planned: Planned) -> InputError:
    """The plan that did not fit, and a limit under which another one is made."""
    limit = smaller_limit(planned)
    remedy = "use fewer points" if limit is None else f"try --memory-limit {limit // 10**6}MB"
    return InputError(
        f"out of memory: a step takes {show_bytes(planned.compiled or planned.predicted)} as "
        f"planned ({strategy(planned)}), and {show_bytes(planned.available)} were free; {remedy}"
    )


def describe(optimizer: Optimizer) -> dict[str, Any]:
    """The parts and numbers of an optimizer that was built in Python."""
    numbers = named_arrays(eqx.filter(optimizer, eqx.is_inexact_array))
    return {
        "name": type(optimizer).__name__,
        **dict(_parts(vars(optimizer))),
        **{name: value.tolist() for name, value in numbers.items()},
    }


def _parts(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """What is no array: modules and functions by their names, and plain values."""
    for key, value in fields.items():
        name = f"{prefix}{key}"
        if isinstance(value, bool | int | float | str):
            yield name, value
        elif isinstance(value, Mapping):
            yield from _parts(value, f"{name}.")
        elif isinstance(value, eqx.Module):
            yield name, type(value).__name__
            yield from _parts(vars(value), f"{name}.")
        elif callable(value):
            yield name, getattr(value, "__qualname__", type(value).__name__)
