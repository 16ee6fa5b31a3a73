"""Every table of names: strings become objects here and nowhere else."""

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from ..domains.sampling import Sobol, Uniform
from ..errors import unknown
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
FULL_STEPS = {"hessian_free": 1.0}  # the first rates of methods that solve for whole steps
LINE_SEARCHES = {"grid": Grid, "armijo": Armijo, "quadratic": Quadratic}
SAMPLERS = {"uniform": Uniform, "sobol": Sobol}
ACTIVATIONS = {
    "tanh": jnp.tanh,
    "sin": jnp.sin,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
}


@cache
def optimizer_defaults(name: str) -> dict[str, Any]:
    """The settings that an optimizer takes, read off its preset: one place for each default."""
    if name not in OPTIMIZERS:
        raise unknown("optimizer", name, OPTIMIZERS)
    build = OPTIMIZERS[name]
    parameters = inspect.signature(build).parameters
    defaults = {f"optimizer.{key}": _plain(p.default) for key, p in parameters.items()}
    if "line_search" in parameters:
        built = build()
        rule = getattr(built, "rule", None)  # of K-FAC's updates
        defaults["optimizer.line_search"] = _plain(getattr(built, "line_search", rule))
    return defaults


def _plain(default: Any) -> Any:
    """A default of a Python function as a setting."""
    if default is None or isinstance(default, Fixed):
        return "none"
    names = [name for name, kind in LINE_SEARCHES.items() if isinstance(default, kind)]
    return names[0] if names else default


def chosen(key: str, name: str, table: Mapping[str, Any]) -> Any:
    if not isinstance(name, str) or name not in table:
        raise unknown(key, str(name), table)
    return table[name]
