"""From settings with dotted keys to a whole configuration.

Every setting has a dotted key. A configuration is resolved from the problem's own sizes, the preset
for that problem and optimizer, and what the user says, in this order; what results spells out
everything that is needed to run again.
"""

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from ..errors import InputError, unknown
from ..optimizers.presets import DEFAULT_LEARNING_RATE
from ..precision import DOUBLE
from ..problems import catalogue as problems
from ..problems.problem import Problem
from .config import MLP_NAME, Config
from .names import ACTIVATIONS, DEFAULT_OPTIMIZER, FULL_STEPS, NYSTROM, optimizer_defaults
from .own_code import lookup_problem
from .settings import flatten

FORMAT = 8
OLDEST_FORMAT = 5  # that can still be read; the ones before were never released
DEFAULT_BUDGET = 60.0
DEFAULT_CHECKPOINT_SECONDS = 60.0
OF_MLP = ("model.widths", "model.activation", "model.scaled")


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
    if settings.get("model.name", MLP_NAME) != MLP_NAME:  # these are for natpinn's own network
        defaults |= dict.fromkeys(OF_MLP, "none")
    for key in settings:
        if key not in defaults:
            raise unknown("setting", key, defaults)
    check_format(settings)
    merged = {**defaults, **settings, "format": FORMAT}
    for key in ("track.quantities", "track.trackers"):
        merged[key] = [merged[key]] if isinstance(merged[key], str) else merged[key]
    if merged["train.steps"] == merged["train.budget"] == "none":
        merged["train.budget"] = DEFAULT_BUDGET
    return Config.of(merged)


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


def preset(problem: str, optimizer: str, line_search: str) -> dict[str, Any]:
    """The best settings known for a problem and an optimizer, or nothing.

    Methods with a sketch take the best settings of the same method without one.
    """
    table = tomllib.loads((files("natpinn.runs") / "presets.toml").read_text("utf-8"))
    step_rule = "fixed" if line_search == "none" else line_search
    exact = optimizer.removesuffix(NYSTROM)
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
        "model.name": MLP_NAME,
        "model.widths": "none" if problem.widths is None else list(problem.widths),
        "model.activation": next(k for k, f in ACTIVATIONS.items() if f is problem.activation),
        "model.scaled": problem.scaled,
        "sampling.points": "none",
        "sampling.held": False,
        "sampling.steps_per_batch": 1,
        "sampling.candidates": 1,
        "evaluation.points": problem.evaluation_points or "none",
        "train.steps": "none",
        "train.budget": "none",
        "train.stop_at": "none",
        "compute.devices": 1,
        "compute.memory_limit": "none",
        "compute.precision": DOUBLE,
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


def check_format(settings: Mapping[str, Any]) -> None:
    """Check that this version can read the format of a configuration."""
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
