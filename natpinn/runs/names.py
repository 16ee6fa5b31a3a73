"""Every table of names: strings become objects here and nowhere else."""

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax

from ..domains.sampling import Sobol, Uniform
from ..errors import InputError, unknown
from ..models.mlp import tanh_sin
from ..optimizers.base import Optimizer
from ..optimizers.kfac_update import Quadratic
from ..optimizers.line_search import Armijo, Fixed, Grid
from ..optimizers.presets import (
    adam,
    auto,
    engd,
    engd_w,
    engd_w_nystrom,
    hessian_free,
    kfac,
    lbfgs,
    sgd,
    spring,
    spring_nystrom,
)
from ..solvers.ladder import AdaptiveNystrom

DEFAULT_OPTIMIZER = "auto"
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": sgd,
    "adam": adam,
    "lbfgs": lbfgs,
    "hessian_free": hessian_free,
    "kfac": kfac,
    "engd": engd,
    "engd_w": engd_w,
    "spring": spring,
    "engd_w_nystrom": engd_w_nystrom,
    "spring_nystrom": spring_nystrom,
    "auto": auto,
}
FULL_STEPS = {"hessian_free": 1.0}  # default rates of methods that solve for whole steps
LINE_SEARCHES = {"grid": Grid, "armijo": Armijo, "quadratic": Quadratic}
SAMPLERS = {"uniform": Uniform, "sobol": Sobol}
ACTIVATIONS = {
    "tanh": jnp.tanh,
    "tanh_sin": tanh_sin,
    "sin": jnp.sin,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
}

SCHEDULES = [name for name in dir(optax.schedules) if name.endswith(("_schedule", "_decay"))]
NYSTROM = "_nystrom"  # the suffix of methods with a sketch as their solver
ADAPTIVE = "auto"  # the rank of a sketch that follows from training
OBJECTS = ("solver",)  # arguments that exist in Python only, not as settings
Entry = TypeVar("Entry")


def build_optimizer(settings: Mapping[str, Any]) -> Optimizer:
    """An optimizer from its name and its settings."""
    name = settings["name"]
    if name not in OPTIMIZERS:
        raise unknown("optimizer", str(name), OPTIMIZERS)
    arguments = {k: _argument(k, v) for k, v in settings.items() if k != "name"}
    if arguments.get("rank") != ADAPTIVE:
        return OPTIMIZERS[name](**arguments)
    del arguments["rank"]
    solver = AdaptiveNystrom(arguments.pop("variant"))
    return OPTIMIZERS[name.removesuffix(NYSTROM)](**arguments, solver=solver)


@cache
def optimizer_defaults(name: str) -> dict[str, Any]:
    """The settings that an optimizer takes, read off its preset: one place for each default."""
    if name not in OPTIMIZERS:
        raise unknown("optimizer", name, OPTIMIZERS)
    build = OPTIMIZERS[name]
    parameters = inspect.signature(build).parameters
    settings = {k: p for k, p in parameters.items() if k not in OBJECTS}
    defaults = {f"optimizer.{key}": _plain(p.default) for key, p in settings.items()}
    if "line_search" in parameters:
        built = build()
        rule = getattr(built, "rule", None)  # of K-FAC's updates
        defaults["optimizer.line_search"] = _plain(getattr(built, "line_search", rule))
    return defaults


def chosen(key: str, name: object, table: Mapping[str, Entry]) -> Entry:
    """The entry of a table under a name."""
    if not isinstance(name, str) or name not in table:
        raise unknown(key, str(name), table)
    return table[name]


def _plain(default: object) -> object:
    """A default of a Python function as a setting."""
    if default is None or isinstance(default, Fixed):
        return "none"
    names = [name for name, kind in LINE_SEARCHES.items() if isinstance(default, kind)]
    return names[0] if names else default


def _argument(key: str, value: object) -> Any:
    """What a setting stands for: a number, nothing, a line search or an optax schedule."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return _schedule(key, value)
    if key == "line_search":
        return chosen("line search", value, LINE_SEARCHES)()
    return value


def _schedule(key: str, table: Mapping[str, Any]) -> optax.Schedule:
    """An optax schedule from `{schedule = "cosine_decay_schedule", init_value = 0.1, …}`."""
    name = table.get("schedule")
    if name not in SCHEDULES:
        raise unknown(f"schedule for optimizer.{key}", str(name), SCHEDULES)
    arguments = {k: _with_whole_keys(v) for k, v in table.items() if k != "schedule"}
    try:
        return getattr(optax.schedules, name)(**arguments)
    except Exception as error:
        raise InputError(f"optimizer.{key}: {name} cannot be built: {error}") from error


def _with_whole_keys(value: object) -> object:
    """TOML keys are strings, and a schedule by steps wants numbers."""
    if isinstance(value, Mapping):
        return {int(k) if str(k).isdigit() else k: v for k, v in value.items()}
    return value
