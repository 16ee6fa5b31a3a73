"""Reading run folders. Their format is a contract, since other tools read them too."""

import json
import math
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import read_text
from ..training.record import RENAMED, Record

CONFIG, METRICS, SUMMARY = "config.toml", "metrics.jsonl", "summary.json"
MOST = 2**53  # of what is counted: up to here a float has all whole numbers
DAMAGE = (  # what reading a line that nobody of good will has written may raise
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
SHORT = 200  # letters of what a library says of a damaged file
BEST, CHECKPOINT, PICTURE = "best", "checkpoint", "solution.png"


def command(config: Path | str, settings: Mapping[str, Any]) -> str:
    """The command that runs a configuration, with code of the user's own named in it."""
    problem, model = (str(settings.get(f"{part}.name")) for part in ("problem", "model"))
    words = ["natpinn", "solve", *([problem] if ":" in problem else []), "--config", str(config)]
    return shlex.join([*words, *(["--set", f"model.name={model}"] if ":" in model else [])])


def read_config(path: Path) -> dict[str, Any]:
    """The tables of a configuration."""
    try:
        return tomllib.loads(_read(path / CONFIG))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path / CONFIG} is not valid TOML: {_short(error)}") from error


def read_history(path: Path) -> list[Record]:
    """The records of a run; a last line that was not written to its end does not count."""
    records = []
    lines = _read(path / METRICS).splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            assert line.endswith("\n")
            records.append(_renamed({name: _number(value) for name, value in record.items()}))
            assert is_count(record["step"])
            assert "seconds" in record
        except DAMAGE as error:
            if number == len(lines) and not line.endswith("\n"):
                break
            raise InputError(f"line {number} of {path / METRICS} cannot be read") from error
    return records


def is_count(value: object) -> bool:
    """Whether a value is a whole number that a run may have counted to."""
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return 0 <= value <= MOST


def finite(value: object) -> float | None:
    """A value of a summary as a number, if it is one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        return None
    return float(value) if abs(value) <= MOST or isinstance(value, float) else None


def _number(value: object) -> int | float:
    """A number of a record; null is NaN."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return value if abs(float(value)) <= MOST else float(value)


def read_summary(path: Path) -> Record:
    """The summary of a run."""
    try:
        summary = json.loads(_read(path / SUMMARY))
        assert isinstance(summary, dict)
    except InputError:
        raise
    except (ValueError, AssertionError, RecursionError) as error:
        raise InputError(f"{path / SUMMARY} cannot be read: {_short(error)}") from error
    return _renamed(summary)


def _renamed(values: Mapping[str, Any]) -> Record:
    """A record or a summary with names of earlier versions replaced by those of today."""
    return Record({RENAMED.get(name, name): value for name, value in values.items()})


def _read(path: Path) -> str:
    try:
        return read_text(path)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text: {error.reason}") from error
    except OSError as error:
        why = "" if isinstance(error, FileNotFoundError) else f": {error.strerror}"
        raise InputError(
            f"{path.parent} is not a run folder: {path.name} cannot be read{why}"
        ) from error


def _short(error: Exception) -> str:
    """The beginning of what an error says."""
    return str(error).partition("\n")[0][:SHORT] or type(error).__name__
