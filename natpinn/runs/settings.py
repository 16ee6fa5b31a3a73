"""Settings as text: TOML files, `--set key=value`, and tables with dotted keys."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import read_named


def read_file(path: Path) -> dict[str, Any]:
    """The settings of a TOML file, with dotted keys."""
    return flatten(read_toml(path))


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file that a user has named."""
    try:
        return tomllib.loads(read_named(path))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits
        raise InputError(f"{path} is not valid TOML: {str(error)[:200]}") from error


def parse_setting(text: str) -> tuple[str, Any]:
    """`key=value` from the command line; a value that is not TOML is a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set wants key=value, got {text!r}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):  # no TOML, or nested a thousand times
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


def without_dependants(settings: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a file, less those of a problem or optimizer that a flag replaces."""
    kept = dict(settings)
    of_optimizer = ("optimizer.", "sampling.steps_per_batch")
    dependants = {
        "problem.name": ("problem.", "points.", "model.", "evaluation.", *of_optimizer),
        "optimizer.name": of_optimizer,
    }
    for name, prefixes in dependants.items():
        if name in flags and flags[name] != settings.get(name):
            stay = {"optimizer.name"} if name == "problem.name" else set()
            kept = {k: v for k, v in kept.items() if k in stay or not k.startswith(prefixes)}
    return kept
