"""Search spaces: from which values a setting is drawn, and how to narrow that."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import InputError, unknown
from ..runs.settings import flatten

NARROWED = 0.25  # the share of a range that is left around the best value
Option = bool | int | float | str  # of a choice


@dataclass(frozen=True)
class Range:
    """Numbers between two ends, equally likely, or their logarithms if `is_log`."""

    low: float
    high: float
    is_log: bool = False
    is_whole: bool = False  # for a setting that is a whole number

    def __post_init__(self):
        numbers = (self.low, self.high)
        if not all(isinstance(n, int | float) and math.isfinite(n) for n in numbers):
            raise InputError(
                f"a range has two numbers as its ends, got {self.low!r}, {self.high!r}"
            )
        if not self.low < self.high:
            raise InputError(f"a range goes from a smaller to a larger number, got {numbers}")
        if self.is_log and self.low <= 0:
            raise InputError(f"a range of logarithms starts above zero, got {self.low}")

    def draw(self, random: np.random.Generator) -> float:
        low, high = self._scaled(self.low), self._scaled(self.high)
        value = self._unscaled(random.uniform(low, high))
        return round(value) if self.is_whole else value

    def narrowed(self, best: float) -> "Range":
        """A quarter of the range around a value, moved inside where it would leave the range."""
        low, high = self._scaled(self.low), self._scaled(self.high)
        half = NARROWED * (high - low) / 2
        middle = min(max(self._scaled(best), low + half), high - half)
        ends = self._unscaled(middle - half), self._unscaled(middle + half)
        if self.is_whole and round(ends[0]) >= round(ends[1]):
            return self
        return replace(self, low=ends[0], high=ends[1])

    def describe(self) -> dict[str, list[float]]:
        return {"log_uniform" if self.is_log else "uniform": [self.low, self.high]}

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.is_log else value

    def _unscaled(self, value: float) -> float:
        raw = math.exp(value) if self.is_log else value
        return min(max(raw, self.low), self.high)


@dataclass(frozen=True)
class Choice:
    """One of some values, equally likely."""

    options: tuple[Option, ...]

    def __post_init__(self):
        if not self.options:
            raise InputError("a choice needs at least one value")
        for option in self.options:
            if not isinstance(option, bool | int | float | str):
                raise InputError(f"a choice has numbers, texts, true or false, got {option!r}")

    def draw(self, random: np.random.Generator) -> Option:
        return self.options[random.integers(len(self.options))]

    def narrowed(self, best: Option) -> "Choice":
        """The same choice: Optuna identifies it by its options, so they cannot change."""
        return self

    def describe(self) -> dict[str, list[Option]]:
        return {"choice": list(self.options)}


Space = dict[str, Range | Choice]
KINDS = ("uniform", "log_uniform", "choice")
DAMPING = Range(1e-12, 1.0, is_log=True)
RATE = Range(1e-4, 1.0, is_log=True)
MOMENTUM = Range(0.0, 0.999)
NORM_CAP = Range(1e-3, 10.0, is_log=True)
RANK = Choice((0.05, 0.1, 0.2, 0.4))
WIDE: dict[str, Space] = {  # where the first stage of a search looks, per optimizer
    "sgd": {"learning_rate": RATE, "momentum": Choice((0.0, 0.3, 0.6, 0.9))},
    "adam": {"learning_rate": RATE},
    "lbfgs": {"memory_size": Choice((10, 25, 50, 100))},
    "hessian_free": {
        "damping": Range(0.05, 100.0, is_log=True),
        "most_iterations": Choice((100, 150, 200, 250, 300, 350)),
    },
    "kfac": {"damping": DAMPING, "average": Range(0.0, 0.999)},
    "engd": {
        "damping": DAMPING,
        "average": Choice((0.0, 0.3, 0.6, 0.9)),
        "start_at_identity": Choice((False, True)),
    },
    "engd_w": {"damping": DAMPING, "learning_rate": RATE},
    "spring": {
        "damping": DAMPING,
        "momentum": MOMENTUM,
        "learning_rate": RATE,
        "norm_cap": NORM_CAP,
    },
    "engd_w_nystrom": {"damping": DAMPING, "learning_rate": RATE, "rank": RANK},
    "spring_nystrom": {
        "damping": DAMPING,
        "momentum": MOMENTUM,
        "learning_rate": RATE,
        "norm_cap": NORM_CAP,
        "rank": RANK,
    },
    "auto": {
        "learning_rate": Range(0.02, 1.0, is_log=True),
        "surprise": Range(0.1, 3.0, is_log=True),
        "forgetting": Range(1.0, 30.0, is_log=True),
    },
}


def wide(optimizer: str, settings: Mapping[str, Any]) -> Space:
    """The space of a search's first stage, without settings that the others make useless.

    These are the learning rate beside a line search, and the norm cap where there is none.
    """
    found = {f"optimizer.{key}": values for key, values in WIDE.get(optimizer, {}).items()}
    if settings.get("optimizer.line_search", "none") != "none":
        found.pop("optimizer.learning_rate", None)
    if settings.get("optimizer.norm_cap", "none") == "none":
        found.pop("optimizer.norm_cap", None)
    if not found:
        raise InputError("say where to look, as in --space optimizer.damping=log_uniform:1e-9:1")
    return found


def parse_table(table: Mapping[str, Any]) -> Space:
    """`{"optimizer.damping": {"log_uniform": [1e-9, 1]}, …}`, as in a TOML file."""
    found: Space = {}
    for key, values in flatten(table).items():
        name, _, kind = key.rpartition(".")
        if not isinstance(values, Sequence) or isinstance(values, str) or not name:
            raise InputError(f"{key} must be like {{ uniform = [0, 1] }}, got {values!r}")
        if name in found:
            raise InputError(f"{name} has two ranges: leave one")
        found[name] = _space(name, kind, values)
    return found


def parse_text(text: str) -> tuple[str, Range | Choice]:
    """`optimizer.damping=log_uniform:1e-9:1`, as on the command line."""
    key, equals, rest = text.partition("=")
    kind, *values = rest.split(":")
    if not equals or not values:
        raise InputError(
            f"--space wants KEY=KIND:VALUE:VALUE, as in optimizer.damping=log_uniform:1e-9:1, got "
            f"{text!r}"
        )
    return key.strip(), _space(key.strip(), kind.strip(), [_value(v) for v in values])


def parse_texts(texts: Sequence[str]) -> Space:
    found: Space = {}
    for text in texts:
        key, values = parse_text(text)
        if key in found:
            raise InputError(f"{key} has two ranges: leave one")
        found[key] = values
    return found


def describe(space: Space) -> dict[str, object]:
    """The same as `parse_table` reads."""
    return {key: values.describe() for key, values in space.items()}


def _space(name: str, kind: str, values: Sequence[Any]) -> Range | Choice:
    if kind not in KINDS:
        raise unknown(f"kind of range for {name}", kind, KINDS)
    if kind == "choice":
        return Choice(tuple(values))
    if len(values) != 2:
        raise InputError(f"{name}: a range has two ends, got {list(values)}")
    if any(isinstance(v, str | bool) for v in values):
        raise InputError(f"{name}: the ends of a range are numbers, got {list(values)}")
    return Range(*values, is_log=kind == "log_uniform")


def _value(text: str) -> Option:
    """A word of the command line: a number, a truth, or a name."""
    if text in ("true", "false"):
        return text == "true"
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
