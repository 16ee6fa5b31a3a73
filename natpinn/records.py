"""The run folder: config, metrics, summary, parameters. A contract, since other tools read it."""

import json
import math
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import jax
import tomli_w

from .errors import InputError

CONFIG, METRICS, SUMMARY = "config.toml", "metrics.jsonl", "summary.json"
BEST, CHECKPOINT, PICTURE = "best", "checkpoint", "solution.png"


class RunFolder:
    """Writes one run, line by line as it happens."""

    def __init__(self, path: Path, config: dict[str, Any]):
        check_free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / CONFIG).write_text(tomli_w.dumps(config))
            (path / METRICS).touch()
        except OSError as error:
            raise InputError(f"cannot write to {path}: {error.strerror}") from error
        self.path = path

    def append(self, record: dict[str, float]) -> None:
        """One evaluation."""
        with (self.path / METRICS).open("a") as metrics:
            metrics.write(json.dumps(_finite(record)) + "\n")

    def finish(self, summary: dict[str, Any]) -> None:
        text = json.dumps(_finite(summary), indent=2, ensure_ascii=False)
        partial = self.path / f"{SUMMARY}.part"
        partial.write_text(text + "\n")
        os.replace(partial, self.path / SUMMARY)


def check_free(path: Path) -> None:
    """A folder that a run may be written to: not there yet, or empty."""
    try:
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file: choose a folder that is not there yet")
        if path.exists() and any(path.iterdir()):
            what = "another run" if (path / CONFIG).exists() else "other files"
            raise InputError(f"{path} holds {what}: choose another folder with --out, or remove it")
    except OSError as error:
        raise InputError(f"cannot use {path}: {error.strerror}") from error


def read_config(path: Path) -> dict[str, Any]:
    return tomllib.loads(_read(path / CONFIG))


def read_history(path: Path) -> list[dict[str, float]]:
    lines = _read(path / METRICS).splitlines()
    return [{k: math.nan if v is None else v for k, v in json.loads(ln).items()} for ln in lines]


def read_summary(path: Path) -> dict[str, Any]:
    return json.loads(_read(path / SUMMARY))


def machine() -> dict[str, Any]:
    """Where a run took place: device, versions and peak memory so far."""
    from importlib.metadata import version

    from . import __version__

    device = jax.local_devices()[0]
    packages = ("jax", "equinox", "optax", "folx", "numpy")
    return {
        "device": f"{device.device_kind} ({device.platform})",
        "versions": {
            "natpinn": __version__,
            "python": sys.version.split()[0],
            **{name: version(name) for name in packages},
        },
        "peak_memory_bytes": _peak_memory(device),
    }


def _peak_memory(device: Any) -> int:
    """The most memory that the device, or on a CPU the process, has used."""
    stats = device.memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return int(stats["peak_bytes_in_use"])
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise InputError(
            f"{path.parent} is not a run folder: {path.name} cannot be read"
        ) from error


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: both become null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
