"""What a run is made of: the objects that its configuration names."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from ..least_squares.objective import LeastSquares
from ..models.theta import Theta, as_model, numbers
from ..optimizers.base import Optimizer
from ..parallel.devices import make_mesh
from ..planning.proposal import ROWS_PER_PARAMETER, Worth, propose_points, propose_widths
from ..precision import computing, rounded
from ..problems.problem import Problem
from ..training.cache import use_compilation_cache
from ..training.loop import check_tracking
from .checkpoint import named_arrays
from .config import Config, ModelConfig


@dataclass(frozen=True)
class Parts:
    """What a run is made of."""

    config: Config
    problem: Problem
    model: Any  # anything that maps a point to numbers
    optimizer: Optimizer
    objective: LeastSquares
    theta: Theta
    worth: Worth | None  # of a step, where the net or the points follow from it

    @property
    def constants(self) -> PyTree:
        """The arrays of the model that are not trained."""
        return numbers(self.objective.frozen)


def assemble(
    config: Config,
    problem: Problem | None = None,
    model: Any = None,
    optimizer: Optimizer | None = None,
) -> Parts:
    """The parts of a run, new or resumed, from its configuration.

    Objects that are passed replace what is configured; the configuration then describes them as far
    as a file can.
    """
    use_compilation_cache()
    with computing(config.compute.precision):
        return _assemble(config, rounded(problem), rounded(model), rounded(optimizer))


def _assemble(
    config: Config, problem: Problem | None, model: Any, optimizer: Optimizer | None
) -> Parts:
    config = describe_objects(config, problem, model, optimizer)
    make_mesh(config.compute.devices)  # raises where they do not exist
    problem = config.build_problem() if problem is None else config.apply_sizes(problem)
    optimizer = config.build_optimizer() if optimizer is None else optimizer
    check_tracking(config.track.tracking, optimizer)
    is_net_free = model is None and config.model.is_free
    is_free = is_net_free or not all(c.is_sized for c in problem.conditions.values())
    worth = Worth.of(config.train.limits) if is_free else None
    if worth is not None and is_net_free:
        widths = propose_widths(problem, worth)
        config = replace(config, model=replace(config.model, widths=widths))
    model = config.build_model(problem, model_key(config.seed)) if model is None else model
    model = as_model(model)
    if worth is not None:
        most = ROWS_PER_PARAMETER if is_net_free else 1.0
        points = propose_points(problem, model, optimizer, worth, config.compute.bytes, most)
        problem = problem.with_points(points)
    config = replace(config, points={name: c.points for name, c in problem.conditions.items()})
    objective, theta = problem.objective(model)
    return Parts(config, problem, model, optimizer, objective, theta, worth)


def run_keys(seed: int) -> tuple[PRNGKeyArray, PRNGKeyArray, PRNGKeyArray]:
    """The keys of a run: for the model, for training, for the evaluation."""
    return _run_keys(np.int64(seed))


@jax.jit
def _run_keys(seed: Array) -> tuple[PRNGKeyArray, PRNGKeyArray, PRNGKeyArray]:
    model, training, evaluation = jax.random.split(jax.random.key(seed), 3)
    return model, training, evaluation


def model_key(seed: int) -> PRNGKeyArray:
    """The key that the first weights of a run are drawn with."""
    return run_keys(seed)[0]


def describe_objects(
    config: Config, problem: Problem | None, model: Any, optimizer: Optimizer | None
) -> Config:
    """The configuration of a run that gets some objects from Python."""
    known = config.problem
    if problem is not None and not problem.is_catalogued and ":" not in known.name:
        config = replace(config, problem=replace(known, own=True))
    if model is not None and ":" not in config.model.name:
        config = replace(config, model=ModelConfig(type(model).__name__))
    if optimizer is not None:
        config = replace(config, optimizer=describe_optimizer(optimizer))
    return config


def describe_optimizer(optimizer: Optimizer) -> dict[str, Any]:
    """The parts and numbers of an optimizer that was built in Python."""
    numbers = named_arrays(eqx.filter(optimizer, eqx.is_inexact_array))
    return {
        "name": type(optimizer).__name__,
        **dict(_fields(vars(optimizer))),
        **{name: value.tolist() for name, value in numbers.items()},
    }


def _fields(
    fields: Mapping[str, object], prefix: str = ""
) -> Iterator[tuple[str, bool | int | float | str]]:
    """The fields that are no arrays: plain values, and modules and functions by their names."""
    for key, value in fields.items():
        name = f"{prefix}{key}"
        if isinstance(value, bool | int | float | str):
            yield name, value
        elif isinstance(value, Mapping):
            yield from _fields(value, f"{name}.")
        elif isinstance(value, eqx.Module):
            yield name, type(value).__name__
            yield from _fields(vars(value), f"{name}.")
        elif callable(value):
            yield name, getattr(value, "__qualname__", type(value).__name__)
