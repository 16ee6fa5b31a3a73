"""Code of a user's own, run because the command line names it."""

import importlib
import inspect
import os
import sys
from typing import Any, Literal

from jaxtyping import PRNGKeyArray

from ..errors import InputError
from ..models.theta import as_model
from ..problems import catalogue as problems
from ..problems.problem import Problem


def lookup_problem(name: str, dimension: int | Literal["none"] | None = None) -> Problem:
    """A problem of the catalogue, or a user's own as `module:attribute`."""
    if ":" not in name:
        module = _as_module(name)
        path = f"{module.replace('.', '/')}.py"
        if name not in problems.CATALOGUE and os.path.exists(path):
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


def _import_attribute(kind: str, path: str) -> Any:
    """What `module:attribute` names, with the current folder on the path as for `python -m`."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute or module_name.startswith("."):
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
