"""Files that have their old or their new text, whatever happens."""

import json
import math
import os
from pathlib import Path

PARTIAL = ".part"  # ends the name of a file that is being written, or was when a process died


def replace_text(path: Path, text: str) -> None:
    """Write a file beside the old one, and put it in its place."""
    partial = path.with_name(path.name + PARTIAL)
    partial.write_text(text)
    os.replace(partial, path)


def as_json(value: object, indent: int | None = None) -> str:
    """One JSON text with a line end; NaN and infinity, which JSON has not, become null."""
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False) + "\n"


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
