"""One self-contained page from run folders: tables, curves, pictures, and how to run each again."""

import base64
import datetime
import html
import io
import json
import math
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import FILE, check_output, is_kind, read_bytes, replace_text
from ..runs.records import PICTURE, is_count
from .runs import ERRORS, Curve, Run, by_problem

DIGITS = 5  # of the numbers in curves
MOST_PICTURES = 24
PICTURE_WIDTH, COLORS = 1000, 128
MOST_LETTERS = 1000  # of a text from a summary
MOST_PIXELS = 50_000_000  # of a picture that is opened


def write_report(
    runs: Sequence[Run], path: Path, published: Sequence[Curve] = (), left_out: Sequence[str] = ()
) -> None:
    """Write the page; whoever opens it needs no network."""
    path = check_output(path)
    groups = by_problem(runs)
    pictured = _pictured(groups)
    data = {
        "problems": [
            {
                "name": name,
                "criterion": group[0].criterion,
                "runs": [_describe(run, run in pictured) for run in group],
                "published": [
                    {**_curve(c), "optimizer": c.optimizer} for c in published if c.problem == name
                ],
            }
            for name, group in groups.items()
        ],
        "errors": ERRORS,
        "left_out": list(left_out),
    }
    try:
        replace_text(path, _page(data, len(runs)))
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def _page(data: dict[str, Any], count: int) -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise InputError("the report needs Plotly: pip install plotly") from error
    assets = files("natpinn.report")
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    names = ", ".join(problem["name"] for problem in data["problems"])
    parts = {
        "TITLE": html.escape(f"natpinn: {names}"),
        "WHEN": datetime.date.today().isoformat(),
        "WHAT": html.escape(f"{count} {'run' if count == 1 else 'runs'} of {names}"),
        "STYLE": (assets / "page.css").read_text("utf-8"),
        "PLOTLY": get_plotlyjs(),
        "DATA": text,
        "SCRIPT": (assets / "page.js").read_text("utf-8"),
    }
    page = (assets / "page.html").read_text("utf-8")
    head, *rest = page.split("{{")  # each part is put in once, whatever it holds itself
    for piece in rest:
        name, _, after = piece.partition("}}")
        head += parts[name] + after
    return head


def _describe(run: Run, has_picture: bool) -> dict[str, object]:
    summary = run.summary
    return {
        "name": run.name,
        "method": run.method,
        "optimizer": run.config.get("optimizer.name", "?"),
        "seed": run.seed,
        "points": run.points,
        "status": run.status,
        "message": _text(summary.get("message")),
        "settings": {key: _plain(value) for key, value in run.settings.items()},
        "error": _rounded(run.error),
        "best": _rounded(run.best),
        "final": _rounded(run.final),
        "times": [_rounded(run.curve.seconds_to(error)) for error in ERRORS],
        "steps": run.curve.step[-1],
        "seconds": _rounded(run.curve.seconds[-1]),
        "rate": _rounded(run.steps_per_second),
        "memory": memory if is_count(memory := summary.get("peak_memory_bytes")) else None,
        "device": _text(summary.get("device")),
        "command": run.command,
        "curve": _curve(run.curve),
        "picture": _picture(run.folder) if has_picture else None,
    }


def _curve(curve: Curve) -> dict[str, object]:
    columns = {
        "step": curve.step,
        "seconds": curve.seconds,
        "loss": curve.loss,
        "error": curve.error,
        "effective_dimension": curve.effective_dimension,
    }
    return {
        "name": curve.name,
        **{k: [_rounded(v) for v in column] for k, column in columns.items()},
    }


def _pictured(groups: dict[str, list[Run]]) -> list[Run]:
    """The best run of each method, the best methods of each problem first."""
    first: list[tuple[int, Run]] = []
    for group in groups.values():
        methods: dict[str, Run] = {}
        for run in group:
            if is_kind(run.folder / PICTURE, FILE):
                methods.setdefault(run.method, run)
        first += enumerate(methods.values())
    return [run for _, run in sorted(first, key=lambda pair: pair[0])][:MOST_PICTURES]


def _picture(folder: Path) -> str | None:
    """A run's picture, small enough that a page can hold many."""
    from PIL import Image

    small = io.BytesIO()
    try:
        content = io.BytesIO(read_bytes(folder / PICTURE))
        with Image.open(content, formats=["PNG"]) as image:
            if math.prod(image.size) > MOST_PIXELS:
                return None
            image.thumbnail((PICTURE_WIDTH, PICTURE_WIDTH))
            image.convert("RGB").quantize(COLORS).save(small, "png", optimize=True)
    except Exception:  # whatever Pillow makes of bytes that are no picture
        return None
    return "data:image/png;base64," + base64.b64encode(small.getvalue()).decode()


def _rounded(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")


def _text(value: object) -> str:
    return value[:MOST_LETTERS] if isinstance(value, str) else ""


def _plain(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
