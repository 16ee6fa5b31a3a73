"""Reading run folders. Their format is a contract, since other tools read them too."""

import json
import math
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..training.record import RENAMED, Record

CONFIG, METRICS, SUMMARY = "config.toml", "metrics.jsonl", "summary.json"
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
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path / CONFIG} is not valid TOML: {error}") from error


def read_history(path: Path) -> list[Record]:
    """The records of a run; a last line that was not written to its end does not count."""
    records = []
    lines = _read(path / METRICS).splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            assert line.endswith("\n")
            assert isinstance(record["step"], int)
        except (ValueError, AssertionError, KeyError, TypeError) as error:
            if number == len(lines) and not line.endswith("\n"):
                break
            raise InputError(f"line {number} of {path / METRICS} cannot be read") from error
        records.append(_renamed({k: math.nan if v is None else v for k, v in record.items()}))
    return records


def read_summary(path: Path) -> Record:
    """The summary of a run."""
    try:
        summary = json.loads(_read(path / SUMMARY))
        assert isinstance(summary, dict)
    except (ValueError, AssertionError) as error:
        raise InputError(f"{path / SUMMARY} cannot be read: {error}") from error
    return _renamed(summary)


def _renamed(values: Mapping[str, Any]) -> Record:
    """A record or a summary with names of earlier versions replaced by those of today."""
    return Record({RENAMED.get(name, name): value for name, value in values.items()})


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text: {error.reason}") from error
    except OSError as error:
        raise InputError(
            f"{path.parent} is not a run folder: {path.name} cannot be read"
        ) from error
