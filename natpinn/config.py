"""Settings: frozen dataclasses ↔ TOML ↔ `--set key=value`, and the only tables of names.

Every setting has a dotted key. A configuration is resolved from the problem's own sizes, the preset
for that problem and optimizer, and what the user says, in this order; what results spells out
everything that is needed to run again.
"""

import difflib
import importlib
import inspect
import os
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import cattrs
import jax
import jax.numpy as jnp
import optax
from jaxtyping import PRNGKeyArray

from . import optimizers, problems
from .errors import InputError, unknown
from .line_search import Grid
from .models import as_model
from .optimizers import Optimizer
from .problem import Problem
from .sampling import Held, Sobol, Uniform
from .train import check_limits

_KINDS = {int: "a whole number", float: "a number", str: "a name", bool: "true or false"}

FORMAT = 1
DEFAULT_OPTIMIZER = "engd_w"
DEFAULT_BUDGET = 60.0

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": optimizers.sgd,
    "adam": optimizers.adam,
    "engd": optimizers.engd,
    "engd_w": optimizers.engd_w,
    "spring": optimizers.spring,
}
LINE_SEARCHES = {"grid": Grid}
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
    dimension: int | None


@dataclass(frozen=True)
class ModelConfig:
    name: str  # mlp, or module:attribute of a function key -> model
    widths: tuple[int, ...]
    activation: str


@dataclass(frozen=True)
class SamplingConfig:
    points: str  # uniform, or sobol
    held: bool  # the same points at every step


@dataclass(frozen=True)
class EvaluationConfig:
    points: int | None  # none: ten times the batch of the equation


@dataclass(frozen=True)
class TrainConfig:
    steps: int | None
    budget: float | None
    stop_at: float | None


@dataclass(frozen=True)
class Config:
    """Everything needed to run again."""

    format: int
    seed: int
    problem: ProblemConfig
    optimizer: dict[str, Any]
    points: dict[str, int]
    model: ModelConfig
    sampling: SamplingConfig
    evaluation: EvaluationConfig
    train: TrainConfig

    def as_dict(self) -> dict[str, Any]:
        """For a TOML file, which cannot hold None: it is written "none"."""
        return _spell_none(cattrs.unstructure(self))

    def build_problem(self) -> Problem:
        problem = lookup_problem(self.problem.name, self.problem.dimension)
        sampler = _choose("sampling.points", self.sampling.points, SAMPLERS)()
        problem = problem.with_sampler(Held(sampler) if self.sampling.held else sampler)
        problem = problem.with_points(self.points)
        if self.evaluation.points is not None:
            problem = problem.with_evaluation_points(self.evaluation.points)
        return problem

    def build_model(self, problem: Problem, key: PRNGKeyArray) -> Any:
        activation = _choose("model.activation", self.model.activation, ACTIVATIONS)
        if self.model.name != "mlp":
            return as_model(_import_attribute("model", self.model.name)(key))
        return problem.default_model(key, self.model.widths, activation)

    def build_optimizer(self) -> Optimizer:
        return build_optimizer(self.optimizer)


def resolve(settings: Mapping[str, Any], problem: Problem | None = None) -> Config:
    """The whole configuration, from settings with dotted keys; `problem.name` must be there.

    A problem that is given is used in place of the one that its name would find.
    """
    if "problem.name" not in settings:
        raise InputError("say which problem to solve: problem.name is missing")
    name = str(settings["problem.name"])
    if problem is None:
        problem = lookup_problem(name, settings.get("problem.dimension"))
    defaults = _defaults(name, problem)
    optimizer = str(settings.get("optimizer.name", DEFAULT_OPTIMIZER))
    defaults["optimizer.name"] = optimizer
    defaults |= optimizer_defaults(optimizer)
    if "optimizer.line_search" in settings:
        defaults["optimizer.line_search"] = settings["optimizer.line_search"]
    defaults |= preset(name, optimizer, defaults.get("optimizer.line_search", "none"))
    for key in settings:
        if key not in defaults:
            raise _unknown_setting(key, list(defaults))
    merged = {**defaults, **settings}
    if merged["train.steps"] == merged["train.budget"] == "none":
        merged["train.budget"] = DEFAULT_BUDGET
    config = _structure(merged)
    check_limits(config.train.steps, config.train.budget)
    return config


def lookup_problem(name: str, dimension: Any = None) -> Problem:
    """A problem of the catalogue, or a user's own as `module:attribute`."""
    dimension = None if dimension == "none" else dimension
    if ":" not in name:
        if dimension is not None and not isinstance(dimension, int):
            raise InputError(f"problem.dimension must be a whole number, got {dimension!r}")
        return problems.get(name, dimension)
    found = _import_attribute("problem", name)
    if inspect.isfunction(found) and not inspect.signature(found).parameters:
        found = found()
    if not isinstance(found, Problem):
        raise InputError(
            f"{name} must be a Problem, or a function without arguments that makes one"
        )
    return found


def build_optimizer(settings: Mapping[str, Any]) -> Optimizer:
    """The optimizer that a table of settings describes, as in `{"name": "spring", …}`."""
    arguments = {key: value for key, value in settings.items() if key != "name"}
    known = optimizer_defaults(settings["name"])
    for key in arguments:
        if f"optimizer.{key}" not in known:
            raise _unknown_setting(f"optimizer.{key}", list(known))
    return OPTIMIZERS[settings["name"]](**{k: _argument(k, v) for k, v in arguments.items()})


@cache
def optimizer_defaults(name: str) -> dict[str, Any]:
    """The settings that an optimizer takes, read off its preset: one place for each default."""
    if name not in OPTIMIZERS:
        raise unknown("optimizer", name, OPTIMIZERS)
    parameters = inspect.signature(OPTIMIZERS[name]).parameters
    return {f"optimizer.{key}": _plain(p.default) for key, p in parameters.items()}


def preset(problem: str, optimizer: str, line_search: str) -> dict[str, Any]:
    """The best settings known for a problem and an optimizer, or nothing."""
    table = tomllib.loads((files("natpinn") / "presets.toml").read_text())
    step_rule = "fixed" if line_search == "none" else line_search
    return flatten(table.get(problem, {}).get(optimizer, {}).get(step_rule, {}))


def read_file(path: Path) -> dict[str, Any]:
    """The settings of a TOML file, with dotted keys."""
    try:
        return flatten(tomllib.loads(path.read_text()))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}") from error


def parse_setting(text: str) -> tuple[str, Any]:
    """`key=value` from the command line; a value that is not TOML is a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set wants key=value, got {text!r}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys; a table that describes a schedule is a value."""
    flat = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and "schedule" not in value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _defaults(name: str, problem: Problem) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "seed": 0,
        "problem.name": name,
        "problem.dimension": _catalogue_dimension(name),
        **{f"points.{key}": c.points for key, c in problem.conditions.items()},
        "model.name": "mlp",
        "model.widths": list(problem.widths),
        "model.activation": "tanh",
        "sampling.points": "uniform",
        "sampling.held": False,
        "evaluation.points": problem.evaluation_points or "none",
        "train.steps": "none",
        "train.budget": "none",
        "train.stop_at": "none",
    }


def _catalogue_dimension(name: str) -> int | str:
    return problems.CATALOGUE[name].dimension if name in problems.CATALOGUE else "none"


def _argument(key: str, value: Any) -> Any:
    """What a setting stands for: a number, nothing, a line search or an optax schedule."""
    if value is None or value == "none":
        return None
    if isinstance(value, Mapping):
        return _schedule(key, value)
    if key == "line_search":
        return _choose("optimizer.line_search", value, LINE_SEARCHES)()
    return value


def _schedule(key: str, table: Mapping[str, Any]) -> Callable[[Any], Any]:
    """An optax schedule from `{schedule = "cosine_decay_schedule", init_value = 0.1, …}`."""
    name = table.get("schedule")
    known = [n for n in dir(optax.schedules) if n.endswith("_schedule")]
    if name not in known:
        raise unknown(f"schedule for optimizer.{key}", str(name), known)
    arguments = {k: v for k, v in table.items() if k != "schedule"}
    try:
        return getattr(optax.schedules, name)(**arguments)
    except (TypeError, ValueError) as error:
        raise InputError(f"optimizer.{key}: {name} cannot be built: {error}") from error


def _plain(default: Any) -> Any:
    """A default of a Python function as a setting."""
    if default is None:
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
    nested["optimizer"] = {key: _plain(value) for key, value in nested["optimizer"].items()}
    try:
        config = _converter().structure(nested, Config)
    except cattrs.BaseValidationError as error:
        reasons = cattrs.transform_error(error, format_exception=lambda e, _: str(e))
        raise InputError("; ".join(reasons).replace(" @ $.", ", in ")) from error
    if config.format != FORMAT:
        raise InputError(
            f"this natpinn reads configurations of format {FORMAT}, got {config.format}"
        )
    return config


@cache
def _converter() -> cattrs.Converter:
    """cattrs, but strict: 3.7 points and a seed of true are errors."""
    converter = cattrs.Converter(forbid_extra_keys=True)

    def strict(*kinds: type) -> Callable[[Any, Any], Any]:
        def hook(value: Any, wanted: Any) -> Any:
            if isinstance(value, bool) != (bool in kinds) or not isinstance(value, kinds):
                raise TypeError(f"{value!r} is not {_KINDS[wanted]}")
            return wanted(value)

        return hook

    converter.register_structure_hook(int, strict(int))
    converter.register_structure_hook(float, strict(int, float))
    converter.register_structure_hook(str, strict(str))
    converter.register_structure_hook(bool, strict(bool))
    return converter


def _choose(key: str, name: str, table: Mapping[str, Any]) -> Any:
    if name not in table:
        raise unknown(key, str(name), table)
    return table[name]


def _unknown_setting(key: str, known: list[str]) -> InputError:
    """The nearest known key, by its whole name or by its last part."""
    same_end = [k for k in known if k.rpartition(".")[2] == key.rpartition(".")[2]]
    near = same_end or difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return InputError(f"unknown setting {key!r}: {hint}")


def _import_attribute(kind: str, path: str) -> Any:
    """What `module:attribute` names, with the current folder on the path as for `python -m`."""
    module_name, _, attribute = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InputError(f"{kind} {path!r}: cannot import {module_name!r}: {error}") from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        raise InputError(f"{kind} {path!r}: {module_name} has no {attribute!r}") from error


def _spell_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _spell_none(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return list(value)
    return "none" if value is None else value
