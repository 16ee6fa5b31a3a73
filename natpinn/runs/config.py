"""A configuration: frozen dataclasses that spell out everything needed to run again.

It is the one truth about a run: what is recorded, and what the run is assembled from. Each part
checks itself where it is made.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, get_args, get_origin

import cattrs
from jaxtyping import PRNGKeyArray

from .. import memory
from ..checks import check_flag, shown, whole
from ..errors import InputError
from ..memory import parse_bytes
from ..models.mlp import check_widths
from ..optimizers.base import Optimizer
from ..precision import PRECISIONS
from ..problems.problem import Problem
from ..training.limits import Limits
from ..training.spectrum import Tracking
from .names import ACTIVATIONS, SAMPLERS, build_optimizer, chosen
from .own_code import lookup_problem, make_model
from .trackers import check_trackers

MLP_NAME = "mlp"
MOST_SEEDS = 2**63
_KINDS = {int: "a whole number", float: "a number", str: "a name", bool: "true or false"}


@dataclass(frozen=True)
class ProblemConfig:
    name: str  # of the catalogue, or module:attribute
    dimension: int | None = None  # of the space of a problem of the catalogue
    own: bool = False  # passed as an object, which its name alone cannot rebuild


@dataclass(frozen=True)
class ModelConfig:
    """Settings of natpinn's own network; for any other model all but the name are None."""

    name: str  # mlp, module:attribute of a function key -> model, or the class of an object
    widths: tuple[int, ...] | None = None
    activation: str | None = None
    scaled: bool | None = None  # inputs mapped to [−1, 1] from the box around all conditions

    def __post_init__(self):
        given = [f.name for f in fields(self)[1:] if getattr(self, f.name) is not None]
        if self.name != MLP_NAME and given:
            raise InputError(
                f"model.{given[0]} is for natpinn's own network, and model.name is {self.name!r}: "
                f"leave one of them out"
            )
        if self.name == MLP_NAME:
            if self.widths is not None:
                check_widths(self.widths)
            chosen("activation", self.activation, ACTIVATIONS)
            check_flag(self.scaled, "model.scaled")

    @property
    def is_free(self) -> bool:
        """Whether the network is natpinn's own, and its widths are to be proposed."""
        return self.name == MLP_NAME and self.widths is None


@dataclass(frozen=True)
class SamplingConfig:
    points: str | None  # uniform or sobol; none: as the problem says
    held: bool  # the same points at every step
    steps_per_batch: int  # before points are drawn anew
    candidates: int  # for each point, of which a batch keeps one by its residual; 1: all

    def __post_init__(self):
        if self.points is not None:
            chosen("sampler", self.points, SAMPLERS)
        whole(self.steps_per_batch, "sampling.steps_per_batch")
        if whole(self.candidates, "sampling.candidates") > 1 and not self.is_new_each_step:
            raise InputError(
                f"sampling.candidates = {self.candidates} needs new points at each step: set it to "
                f"1, or leave out sampling.held and sampling.steps_per_batch"
            )

    @property
    def is_new_each_step(self) -> bool:
        """Whether each step has points of its own."""
        return self.steps_per_batch == 1 and not self.held


@dataclass(frozen=True)
class EvaluationConfig:
    points: int | None  # none: as the problem says

    def __post_init__(self):
        if self.points is not None:
            whole(self.points, "evaluation.points")


@dataclass(frozen=True)
class TrainConfig:
    steps: int | None
    budget: float | None  # seconds of training
    stop_at: float | None  # L2 error, or validation loss

    def __post_init__(self):
        _ = self.limits
        if self.stop_at is not None and not 0 < self.stop_at < math.inf:
            raise InputError(f"stop_at must be a positive error, got {self.stop_at}")

    @property
    def limits(self) -> Limits:
        return Limits(self.steps, self.budget)


@dataclass(frozen=True)
class ComputeConfig:
    devices: int | str  # how many, or "all"
    memory_limit: str | None  # of each device, as in 8GB; none: what is free
    precision: str  # float64, or float32

    def __post_init__(self):
        _ = self.bytes
        chosen("precision", self.precision, PRECISIONS)
        is_count = isinstance(self.devices, int) and not isinstance(self.devices, bool)
        if self.devices != "all" and not (is_count and int(self.devices) >= 1):
            raise InputError(
                f'compute.devices is a number of devices or "all", got {self.devices!r}'
            )

    @property
    def bytes(self) -> int | None:
        """The memory limit."""
        return None if self.memory_limit is None else parse_bytes(self.memory_limit)


@dataclass(frozen=True)
class CheckpointConfig:
    every_seconds: float | None  # none: only at the end

    def __post_init__(self):
        if self.every_seconds is not None and not self.every_seconds > 0:
            raise InputError(f"checkpoint.every_seconds must be positive, got {self.every_seconds}")


@dataclass(frozen=True)
class TrackConfig:
    quantities: tuple[str, ...]  # such as effective_dimension
    every: int  # the quantities are recorded at one evaluation in so many
    trackers: tuple[str, ...]  # that get the records too: wandb, tensorboard

    def __post_init__(self):
        Tracking(self.quantities, self.every)
        check_trackers(self.trackers)

    @property
    def tracking(self) -> Tracking | None:
        """What of the kernel is recorded during training."""
        return Tracking(self.quantities, self.every) if self.quantities else None


@dataclass(frozen=True)
class Config:
    """Everything needed to run again."""

    format: int
    seed: int
    problem: ProblemConfig
    optimizer: dict[str, Any]  # its name and settings, or the description of an object
    points: dict[str, int | None]  # none: as many as are proposed for the model
    model: ModelConfig
    sampling: SamplingConfig
    evaluation: EvaluationConfig
    train: TrainConfig
    compute: ComputeConfig
    checkpoint: CheckpointConfig
    track: TrackConfig

    def __post_init__(self):
        if not 0 <= self.seed < MOST_SEEDS:
            raise InputError(
                f"seed must be a whole number from 0 and below 2**63, got {self.seed!r}"
            )

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Config":
        """From settings with dotted keys, all of them, where "none" stands for None."""
        nested: dict[str, Any] = {}
        for key, value in settings.items():
            *tables, last = key.split(".")
            table = nested
            for part in tables:
                table = table.setdefault(part, {})
            table[last] = None if value == "none" else value
        try:
            return _converter().structure(nested, cls)
        except cattrs.BaseValidationError as error:
            if (own := _first(error, InputError)) is not None:
                raise own from error
            reasons = cattrs.transform_error(error, format_exception=lambda e, _: str(e))
            raise InputError("; ".join(reasons).replace(" @ $.", ", in ")) from error

    def as_dict(self) -> dict[str, Any]:
        """For a TOML file, which cannot hold None: it is written "none"."""
        table = cattrs.unstructure(self)
        if self.model.name != MLP_NAME:
            table["model"] = {"name": self.model.name}
        return _spell_none(table)

    def build_problem(self) -> Problem:
        return self.apply_sizes(lookup_problem(self.problem.name, self.problem.dimension))

    def apply_sizes(self, problem: Problem) -> Problem:
        """A problem with the configured points and samplers."""
        sampling = self.sampling
        if sampling.points is not None:
            problem = problem.with_sampler(SAMPLERS[sampling.points]())
        if sampling.held:
            problem = problem.with_held_points(self.seed)
        if sampling.candidates > 1:
            problem = problem.focused(sampling.candidates)
        if not sampling.is_new_each_step and problem.is_focused:
            raise InputError(
                "points that follow the residual are new at each step: leave out the Focused "
                "sampler or sampling.candidates, or sampling.steps_per_batch and sampling.held"
            )
        problem = problem.with_points(self.points)
        if self.evaluation.points is not None:
            problem = problem.with_evaluation_points(self.evaluation.points)
        return problem

    def build_model(self, problem: Problem, key: PRNGKeyArray) -> Any:
        """The configured model: natpinn's network, or what a user's function makes."""
        model = self.model
        if model.name != MLP_NAME:
            return make_model(model.name, key)
        assert model.widths is not None
        assert model.activation is not None
        sizes = (problem.domain.dimension, *model.widths, 1)
        count = sum(a * b for a, b in pairwise(sizes))
        memory.require(8 * count, f"a model of {count:,} parameters", "set smaller model.widths")
        return problem.default_model(key, model.widths, ACTIVATIONS[model.activation], model.scaled)

    def build_optimizer(self) -> Optimizer:
        return build_optimizer(self.optimizer)


def _first(group: BaseException, kind: type[InputError]) -> InputError | None:
    """The first error of a kind inside a group of errors."""
    if isinstance(group, kind):
        return group
    if isinstance(group, BaseExceptionGroup):
        return next((e for e in (_first(x, kind) for x in group.exceptions) if e), None)
    return None


def _converter() -> cattrs.Converter:
    """cattrs, but strict: 3.7 points and a seed of true are errors."""
    converter = cattrs.Converter(forbid_extra_keys=True)

    def strict(*kinds: type) -> Callable[[Any, Any], Any]:
        def hook(value: Any, wanted: Any) -> Any:
            if isinstance(value, bool) != (bool in kinds) or not isinstance(value, kinds):
                raise TypeError(f"{shown(value)} is not {_KINDS[wanted]}")
            if wanted is int and abs(value) >= 2**63:
                raise TypeError("it is too large")
            return wanted(value)

        return hook

    def listed(value: Any, wanted: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise TypeError(f"it is a list, as in [{shown(value)}]")
        return tuple(converter.structure(item, get_args(wanted)[0]) for item in value)

    converter.register_structure_hook(int, strict(int))
    converter.register_structure_hook(float, strict(int, float))
    converter.register_structure_hook(str, strict(str))
    converter.register_structure_hook(bool, strict(bool))
    converter.register_structure_hook_func(_is_tuple, listed)
    converter.register_structure_hook(int | str, lambda value, _: value)  # checks itself
    return converter


def _is_tuple(wanted: Any) -> bool:
    return get_origin(wanted) is tuple


def _spell_none(value: object) -> Any:
    if isinstance(value, Mapping):
        return {key: _spell_none(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return list(value)
    return "none" if value is None else value
