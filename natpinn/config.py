"""Settings: frozen dataclasses ↔ TOML ↔ `--set key=value`, and the only tables of names.

Every setting has a dotted key. A configuration is resolved from the problem's own sizes, the preset
for that problem and optimizer, and what the user says, in this order; what results spells out
everything that is needed to run again.
"""

import importlib
import inspect
import os
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import cattrs
import jax
import jax.numpy as jnp
import optax
from jaxtyping import PRNGKeyArray

from . import memory, optimizers, problems
from .diagnostics import Tracking
from .errors import InputError, unknown
from .line_search import Armijo, Fixed, Grid
from .memory import parse_bytes
from .models import as_model
from .optimizers import Optimizer
from .optimizers.natural_gradient import DEFAULT_LEARNING_RATE
from .problem import Problem
from .sampling import Sobol, Uniform
from .settings import flatten
from .trackers import check_trackers
from .train import at_least_one, check_limits

_KINDS = {int: "a whole number", float: "a number", str: "a name", bool: "true or false"}

FORMAT = 5
OLDEST_FORMAT = 5  # that can still be read; the ones before were never released
DEFAULT_OPTIMIZER = "auto"
DEFAULT_BUDGET = 60.0
DEFAULT_CHECKPOINT_SECONDS = 60.0

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": optimizers.sgd,
    "adam": optimizers.adam,
    "lbfgs": optimizers.lbfgs,
    "hessian_free": optimizers.hessian_free,
    "kfac": optimizers.kfac,
    "engd": optimizers.engd,
    "engd_w": optimizers.engd_w,
    "spring": optimizers.spring,
    "engd_w_nystrom": optimizers.engd_w_nystrom,
    "spring_nystrom": optimizers.spring_nystrom,
    "auto": optimizers.auto,
}
FULL_STEPS = {"hessian_free": 1.0}  # the first rates of methods that solve for whole steps
LINE_SEARCHES = {"grid": Grid, "armijo": Armijo, "quadratic": optimizers.Quadratic}
OF_MLP = ("model.widths", "model.activation", "model.scaled")
SAMPLERS = {"uniform": Uniform, "sobol": Sobol}
ACTIVATIONS = {
    "tanh": jnp.tanh,
    "sin": jnp.sin,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
}


@dataclass(frozen=True)
class ProblemConfig:
    name: str  # of the catalogue, or module:attribute
    dimension: int | None = None  # of the space of a problem of the catalogue
    own: bool = False  # passed as an object, whatever its name


@dataclass(frozen=True)
class ModelConfig:
    name: str  # mlp, or module:attribute of a function key -> model
    widths: tuple[int, ...]
    activation: str
    scaled: bool  # inputs mapped to [−1, 1] from the box around all conditions


@dataclass(frozen=True)
class SamplingConfig:
    points: str | None  # uniform or sobol; none: as the problem says
    held: bool  # the same points at every step
    steps_per_batch: int  # before points are drawn anew


@dataclass(frozen=True)
class EvaluationConfig:
    points: int | None  # none: as the problem says


@dataclass(frozen=True)
class TrainConfig:
    steps: int | None
    budget: float | None
    stop_at: float | None


@dataclass(frozen=True)
class ComputeConfig:
    devices: int | str  # how many, or "all"
    memory_limit: str | None  # of each device, as in 8GB; none: what is free


@dataclass(frozen=True)
class CheckpointConfig:
    every_seconds: float | None  # none: only at the end


@dataclass(frozen=True)
class TrackConfig:
    quantities: tuple[str, ...]  # such as effective_dimension
    every: int  # evaluations
    trackers: tuple[str, ...]  # that get the records too: wandb, tensorboard


@dataclass(frozen=True)
class Config:
    """Everything needed to run again."""

    format: int
    seed: int
    problem: ProblemConfig
    optimizer: dict[str, Any]
    points: dict[str, int | None]  # none: as many as are proposed for the model
    model: ModelConfig
    sampling: SamplingConfig
    evaluation: EvaluationConfig
    train: TrainConfig
    compute: ComputeConfig
    checkpoint: CheckpointConfig
    track: TrackConfig

    def as_dict(self) -> dict[str, Any]:
        """For a TOML file, which cannot hold None: it is written "none"."""
        return _spell_none(cattrs.unstructure(self))

    def build_problem(self) -> Problem:
        return self.apply_sizes(lookup_problem(self.problem.name, self.problem.dimension))

    def apply_sizes(self, problem: Problem) -> Problem:
        """A problem with the configured points and samplers."""
        if self.sampling.points is not None:
            problem = problem.with_sampler(_choose("sampler", self.sampling.points, SAMPLERS)())
        if self.sampling.held:
            problem = problem.with_held_points(self.seed)
        problem = problem.with_points(self.points)
        if self.evaluation.points is not None:
            problem = problem.with_evaluation_points(self.evaluation.points)
        return problem

    def build_model(self, problem: Problem, key: PRNGKeyArray) -> Any:
        activation = _choose("activation", self.model.activation, ACTIVATIONS)
        if self.model.name == "mlp":
            sizes = (problem.domain.dimension, *self.model.widths, 1)
            count = sum(a * b for a, b in pairwise(sizes))
            remedy = "set smaller model.widths"
            memory.require(8 * count, f"a model of {count:,} parameters", remedy)
            return problem.default_model(key, self.model.widths, activation, self.model.scaled)
        return make_model(self.model.name, key)

    @property
    def tracking(self) -> Tracking | None:
        """What of the kernel is recorded during training."""
        track = Tracking(self.track.quantities, self.track.every)
        return track if track.names else None

    @property
    def memory_limit(self) -> int | None:
        """In bytes."""
        text = self.compute.memory_limit
        return None if text is None else parse_bytes(text)

    def build_optimizer(self) -> Optimizer:
        arguments = {k: _argument(k, v) for k, v in self.optimizer.items() if k != "name"}
        return OPTIMIZERS[self.optimizer["name"]](**arguments)


def resolve(settings: Mapping[str, Any], problem: Problem | None = None) -> Config:
    """The whole configuration, from settings with dotted keys; `problem.name` must be there.

    A problem that is given is used in place of the one that its name would find.
    """
    settings = dict(settings)
    if settings.get("problem.dimension") == "none":  # as a run of a user's own problem records it
        del settings["problem.dimension"]
    if "problem.name" not in settings:
        raise InputError("say which problem to solve: problem.name is missing")
    name = str(settings["problem.name"])
    if problem is None and settings.get("problem.own") is True and ":" not in name:
        raise InputError(
            f"the problem {name!r} of these settings was an object in Python: run them from there, "
            f"or name the problem as module:attribute"
        )
    if problem is None:
        problem = lookup_problem(name, settings.get("problem.dimension"))
    optimizer = str(settings.get("optimizer.name", DEFAULT_OPTIMIZER))
    defaults = _problem_defaults(name, problem) | _optimizer_settings(name, optimizer, settings)
    for key in settings:
        if key not in defaults:
            raise unknown("setting", key, defaults)
    check_format(settings)
    of_mlp = [key for key in OF_MLP if key in settings]
    if settings.get("model.name", "mlp") != "mlp" and of_mlp:
        raise InputError(
            f"{of_mlp[0]} is for natpinn's own network, and model.name is "
            f"{settings['model.name']!r}: leave one of them out"
        )
    merged = {**defaults, **settings, "format": FORMAT}
    for key in ("track.quantities", "track.trackers"):
        merged[key] = [merged[key]] if isinstance(merged[key], str) else merged[key]
    if merged["train.steps"] == merged["train.budget"] == "none":
        merged["train.budget"] = DEFAULT_BUDGET
    config = _structure(merged)
    check_limits(config.train.steps, config.train.budget, config.train.stop_at)
    _ = config.memory_limit, config.tracking  # fails here if they cannot be
    check_trackers(config.track.trackers)
    at_least_one("sampling.steps_per_batch", config.sampling.steps_per_batch)
    every = config.checkpoint.every_seconds
    if every is not None and not every > 0:
        raise InputError(f"checkpoint.every_seconds must be positive, got {every}")
    seed_of({"seed": config.seed})
    return config


def seed_of(settings: Mapping[str, Any]) -> int:
    seed = settings.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise InputError(f"seed must be a whole number from 0 and below 2**63, got {seed!r}")
    return seed


def _optimizer_settings(
    problem: str, optimizer: str, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings of an optimizer for a problem: its defaults, then the preset for its step rule.

    A line search needs no learning rate and no norm cap; a learning rate that is given needs no
    line search.
    """
    defaults = {"optimizer.name": optimizer, **optimizer_defaults(optimizer)}
    if "optimizer.line_search" in defaults:
        if "optimizer.line_search" in settings:
            defaults["optimizer.line_search"] = settings["optimizer.line_search"]
        elif settings.get("optimizer.learning_rate", "none") != "none":
            defaults["optimizer.line_search"] = "none"
        if defaults["optimizer.line_search"] == "none":
            defaults["optimizer.learning_rate"] = FULL_STEPS.get(optimizer, DEFAULT_LEARNING_RATE)
        else:
            replaced = {"optimizer.learning_rate", "optimizer.norm_cap"} & defaults.keys()
            defaults |= dict.fromkeys(replaced, "none")
            if settings.get("optimizer.norm_cap", "none") != "none":
                raise InputError(
                    f"a line search takes the place of a norm cap: leave out optimizer.norm_cap = "
                    f"{settings['optimizer.norm_cap']}, or set optimizer.line_search=none"
                )
    return defaults | preset(problem, optimizer, str(defaults.get("optimizer.line_search", "none")))


def lookup_problem(name: str, dimension: Any = None) -> Problem:
    """A problem of the catalogue, or a user's own as `module:attribute`."""
    if ":" not in name:
        module = _as_module(name)
        if name not in problems.CATALOGUE and Path(f"{module.replace('.', '/')}.py").exists():
            raise InputError(
                f"problem {name!r}: which one of that file? Write {module}:problem, if problem is "
                f"its name there"
            )
        return problems.get(name, None if dimension == "none" else dimension)
    found = _import_attribute("problem", name)
    if inspect.isfunction(found) and not inspect.signature(found).parameters:
        try:
            found = found()
        except Exception as error:
            raise InputError(f"{name} cannot be built: {type(error).__name__}: {error}") from error
    if not isinstance(found, Problem):
        raise InputError(
            f"{name} must be a Problem, or a function without arguments that makes one"
        )
    return found


def make_model(name: str, key: PRNGKeyArray) -> Any:
    """A user's own model: `module:attribute` of a function of a key."""
    make = _import_attribute("model", name)
    try:
        return as_model(make(key))
    except Exception as error:
        raise InputError(f"model {name!r} cannot be built from a key: {error}") from error


@cache
def optimizer_defaults(name: str) -> dict[str, Any]:
    """The settings that an optimizer takes, read off its preset: one place for each default."""
    if name not in OPTIMIZERS:
        raise unknown("optimizer", name, OPTIMIZERS)
    build = OPTIMIZERS[name]
    parameters = inspect.signature(build).parameters
    defaults = {f"optimizer.{key}": _plain(p.default) for key, p in parameters.items()}
    if "line_search" in parameters:
        defaults["optimizer.line_search"] = _plain(getattr(build(), "line_search", None))
    return defaults


def preset(problem: str, optimizer: str, line_search: str) -> dict[str, Any]:
    """The best settings known for a problem and an optimizer, or nothing.

    With a sketch an optimizer starts from the settings that are best without.
    """
    table = tomllib.loads((files("natpinn") / "presets.toml").read_text())
    step_rule = "fixed" if line_search == "none" else line_search
    exact = optimizer.removesuffix("_nystrom")
    return flatten(table.get(problem, {}).get(exact, {}).get(step_rule, {}))


def _problem_defaults(name: str, problem: Problem) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "seed": 0,
        "problem.name": name,
        "problem.own": False,
        **_dimension_default(name, problem),
        **{
            f"points.{key}": c.points if c.is_sized else "none"
            for key, c in problem.conditions.items()
        },
        "model.name": "mlp",
        "model.widths": list(problem.widths),
        "model.activation": "tanh",
        "model.scaled": problem.scaled,
        "sampling.points": "none",
        "sampling.held": False,
        "sampling.steps_per_batch": 1,
        "evaluation.points": problem.evaluation_points or "none",
        "train.steps": "none",
        "train.budget": "none",
        "train.stop_at": "none",
        "compute.devices": 1,
        "compute.memory_limit": "none",
        "checkpoint.every_seconds": DEFAULT_CHECKPOINT_SECONDS,
        "track.quantities": [],
        "track.every": 1,
        "track.trackers": [],
    }


def _dimension_default(name: str, problem: Problem) -> dict[str, int]:
    """The dimension of space is a setting of the problems of the catalogue."""
    if name not in problems.CATALOGUE:
        return {}
    time = problems.get(name).domain.dimension - problems.CATALOGUE[name].dimension
    return {"problem.dimension": problem.domain.dimension - time}


def _argument(key: str, value: Any) -> Any:
    """What a setting stands for: a number, nothing, a line search or an optax schedule."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return _schedule(key, value)
    if key == "line_search":
        return _choose("line search", value, LINE_SEARCHES)()
    return value


def _schedule(key: str, table: Mapping[str, Any]) -> Callable[[Any], Any]:
    """An optax schedule from `{schedule = "cosine_decay_schedule", init_value = 0.1, …}`."""
    name = table.get("schedule")
    known = [n for n in dir(optax.schedules) if n.endswith(("_schedule", "_decay"))]
    if name not in known:
        raise unknown(f"schedule for optimizer.{key}", str(name), known)
    arguments = {k: _with_whole_keys(v) for k, v in table.items() if k != "schedule"}
    try:
        return getattr(optax.schedules, name)(**arguments)
    except Exception as error:
        raise InputError(f"optimizer.{key}: {name} cannot be built: {error}") from error


def _with_whole_keys(value: Any) -> Any:
    """TOML keys are strings, and a schedule by steps wants numbers."""
    if isinstance(value, Mapping):
        return {int(k) if str(k).isdigit() else k: v for k, v in value.items()}
    return value


def _plain(default: Any) -> Any:
    """A default of a Python function as a setting."""
    if default is None or isinstance(default, Fixed):
        return "none"
    names = [name for name, kind in LINE_SEARCHES.items() if isinstance(default, kind)]
    return names[0] if names else default


def _structure(settings: dict[str, Any]) -> Config:
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        *tables, last = key.split(".")
        table = nested
        for part in tables:
            table = table.setdefault(part, {})
        table[last] = None if value == "none" else value
    try:
        config = _converter().structure(nested, Config)
    except cattrs.BaseValidationError as error:
        reasons = cattrs.transform_error(error, format_exception=lambda e, _: _reason(e))
        raise InputError("; ".join(reasons).replace(" @ $.", ", in ")) from error
    return config


def check_format(settings: Mapping[str, Any]) -> None:
    """This version knows what a configuration means."""
    found = settings.get("format", FORMAT)
    if not isinstance(found, int) or isinstance(found, bool):
        raise InputError(f"format must be a whole number, got {found!r}")
    if not OLDEST_FORMAT <= found <= FORMAT:
        remedy = "install a newer one" if found > FORMAT else "start the run again"
        raise InputError(
            f"this is written in format {found}, and this natpinn reads format "
            f"{OLDEST_FORMAT if OLDEST_FORMAT == FORMAT else f'{OLDEST_FORMAT} to {FORMAT}'}: "
            f"{remedy}"
        )


def _reason(error: BaseException) -> str:
    is_no_list = isinstance(error, TypeError) and "not iterable" in str(error)
    return "it is a list, as in [32]" if is_no_list else str(error)


@cache
def _converter() -> cattrs.Converter:
    """cattrs, but strict: 3.7 points and a seed of true are errors."""
    converter = cattrs.Converter(forbid_extra_keys=True)

    def strict(*kinds: type) -> Callable[[Any, Any], Any]:
        def hook(value: Any, wanted: Any) -> Any:
            if isinstance(value, bool) != (bool in kinds) or not isinstance(value, kinds):
                raise TypeError(f"{value!r} is not {_KINDS[wanted]}")
            if wanted is int and abs(value) >= 2**63:
                raise TypeError(f"{value} is too large")
            return wanted(value)

        return hook

    converter.register_structure_hook(int, strict(int))
    converter.register_structure_hook(float, strict(int, float))
    converter.register_structure_hook(str, strict(str))
    converter.register_structure_hook(bool, strict(bool))
    converter.register_structure_hook(int | str, lambda value, _: _devices(value))
    return converter


def _devices(value: Any) -> int | str:
    if value != "all" and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise TypeError(f'{value!r} is not a number of devices or "all"')
    return value


def _choose(key: str, name: str, table: Mapping[str, Any]) -> Any:
    if not isinstance(name, str) or name not in table:
        raise unknown(key, str(name), table)
    return table[name]


def _import_attribute(kind: str, path: str) -> Any:
    """What `module:attribute` names, with the current folder on the path as for `python -m`."""
    module_name, _, attribute = path.partition(":")
    if not module_name or module_name.startswith("."):
        raise InputError(f"{kind} {path!r}: write module:attribute, as in mine:problem")
    if "/" in module_name or module_name.endswith(".py"):
        raise InputError(
            f"{kind} {path!r}: write it as a module, {_as_module(module_name)}:{attribute}"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's own file raises
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{kind} {path!r}: cannot import {module_name!r}: {reason}") from error
    if not hasattr(module, attribute):
        raise InputError(f"{kind} {path!r}: {module_name} has no {attribute!r}")
    return getattr(module, attribute)


def _as_module(path: str) -> str:
    """What `python -m` calls the file with that path."""
    return path.removesuffix(".py").strip("./").replace("/", ".")


def _spell_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _spell_none(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return list(value)
    return "none" if value is None else value
