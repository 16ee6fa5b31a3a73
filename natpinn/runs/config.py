"""A configuration: frozen dataclasses that spell out everything needed to run again."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import cattrs
import optax
from jaxtyping import PRNGKeyArray

from .. import memory
from ..errors import InputError, unknown
from ..memory import parse_bytes
from ..optimizers.base import Optimizer
from ..problems.problem import Problem
from ..training.spectrum import Tracking
from .names import ACTIVATIONS, LINE_SEARCHES, OPTIMIZERS, SAMPLERS, chosen
from .own_code import lookup_problem, make_model

_KINDS = {int: "a whole number", float: "a number", str: "a name", bool: "true or false"}


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
            problem = problem.with_sampler(chosen("sampler", self.sampling.points, SAMPLERS)())
        if self.sampling.held:
            problem = problem.with_held_points(self.seed)
        problem = problem.with_points(self.points)
        if self.evaluation.points is not None:
            problem = problem.with_evaluation_points(self.evaluation.points)
        return problem

    def build_model(self, problem: Problem, key: PRNGKeyArray) -> Any:
        activation = chosen("activation", self.model.activation, ACTIVATIONS)
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


def _argument(key: str, value: Any) -> Any:
    """What a setting stands for: a number, nothing, a line search or an optax schedule."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return _schedule(key, value)
    if key == "line_search":
        return chosen("line search", value, LINE_SEARCHES)()
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


def structure(settings: dict[str, Any]) -> Config:
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


def _spell_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _spell_none(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return list(value)
    return "none" if value is None else value
