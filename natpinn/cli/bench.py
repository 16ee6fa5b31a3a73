"""The commands natpinn bench step | start | scaling | nystrom."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..errors import InputError, unknown
from ..files import check_output
from ..runs.settings import parse_setting
from .options import JsonFlag
from .output import show_table

if TYPE_CHECKING:
    from ..problems.problem import Problem

bench_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@bench_app.callback()
def bench() -> None:
    """Measure how long things take on this machine."""


@bench_app.command("step")
def bench_step(
    problems: Annotated[
        list[str] | None,
        typer.Option("--problem", help="A problem; may be given several times (default: all)."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting, as in points.interior=1000."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            "--optimizer", help="spring (a fixed rate), accurate (its other solver), or auto."
        ),
    ] = "spring",
    repeats: Annotated[int, typer.Option(min=1, help="Timings to take the median of.")] = 5,
    as_json: JsonFlag = False,
) -> None:
    """Time one step of training, its parts, and the floor.

    The floor is the fastest bare J Jᵀ of an N × P matrix plus one Cholesky solve, in the same run;
    for an accurate solve two of both, and one triangular solve with all of the matrix.

    \b
    natpinn bench step --problem poisson_2d --optimizer auto
    natpinn bench step --problem poisson_5d --set points.interior=1000 --set points.boundary=200
    """
    from ..bench.step import METHODS, time_step
    from ..problems.catalogue import CATALOGUE
    from ..runs.parts import model_key
    from ..runs.resolve import resolve

    if method not in METHODS:
        raise unknown("optimizer of this benchmark", method, METHODS)
    given = dict(map(parse_setting, settings or []))
    configs = [resolve({**given, "problem.name": name}) for name in problems or CATALOGUE]
    results = []
    for config in configs:
        built = config.build_problem()
        model = config.build_model(built, model_key(config.seed))
        results.append(time_step(built, model, repeats, method))
        if not as_json:
            _print_step(results[-1])
    if as_json:
        print(json.dumps(results[0] if len(results) == 1 else results, indent=2))


@bench_app.command("start")
def bench_start(
    problems: Annotated[
        list[str] | None,
        typer.Option("--problem", help="A problem; may be given several times."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Warm starts to take the median of.")] = 3,
    as_json: JsonFlag = False,
) -> None:
    """Time what comes before the first step: imports, help, compilation, a problem that changes.

    Each is timed in a process of its own, beside the imports of JAX alone. A cold start has no
    compiled programs to load, a warm one has all of them.

    \b
    natpinn bench start
    natpinn bench start --problem poisson_5d --problem heat_4d --json
    """
    from ..bench.start import time_start
    from ..runs.resolve import resolve

    names = problems or ["poisson_2d"]
    for name in names:
        resolve({"problem.name": name})  # raises for a problem that does not exist
    found = time_start(names, repeats)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    table = Table("", "seconds", "warm", title="From the start of a process")
    for name, seconds in found["process"].items():
        table.add_row(name, f"{seconds:.2f}")
    for title, starts in (
        ("natpinn solve {} --steps 20", found["solve"]),
        ("the first step of {}", found["first_step"]),
    ):
        for name, start in starts.items():
            table.add_row(title.format(name), f"{start['cold']:.2f}", f"{start['warm']:.2f}")
    for name, seconds in found["again"].items():
        table.add_row(f"the README's problem in one process: {name}", f"{seconds:.2f}")
    Console().print(table)


@bench_app.command("scaling")
def bench_scaling(
    problem: Annotated[str, typer.Option(help="A problem from `natpinn list`.")] = "poisson_5d",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting, as in points.interior=1000."),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(help="rows, parameters, dimension or devices (default: all)."),
    ] = None,
    factors: Annotated[
        str, typer.Option(help="What points and widths are multiplied with.")
    ] = "0.25,0.5,1,2",
    dimensions: Annotated[str, typer.Option(help="Dimensions to try.")] = "2,4,8,16",
    repeats: Annotated[int, typer.Option(min=1, help="Timings to take the median of.")] = 3,
    plot: Annotated[Path | None, typer.Option(help="Draw the result to this file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Time SPRING steps against N, P, d and the number of devices, and fit exponents.

    \b
    natpinn bench scaling --problem poisson_2d --vary rows --vary parameters
    natpinn bench scaling --problem poisson_10d --factors 0.5,1,2,4 --plot scaling.png
    """
    from ..bench.step import time_scaling
    from ..memory import show_bytes
    from ..pictures.scaling import draw_scaling
    from ..runs.parts import model_key
    from ..runs.resolve import resolve

    given = dict(map(parse_setting, settings or []))
    base = resolve({**given, "problem.name": problem})
    conditions = base.build_problem().conditions
    if plot is not None:
        check_output(plot)  # before the work
    known = ("rows", "parameters", "dimension", "devices")
    for name in vary or ():
        if name not in known:
            raise unknown("quantity", name, known)

    def make(points: float, widths: float, dimension: int | None) -> "tuple[Problem, Any]":
        sized: dict[str, int | list[int]] = {
            f"points.{key}": max(1, round(points * c.points)) for key, c in conditions.items()
        }
        sized["model.widths"] = [max(1, round(widths * w)) for w in base.model.widths or ()]
        if dimension is not None:
            sized["problem.dimension"] = dimension
        config = resolve({**given, **sized, "problem.name": problem})
        built = config.build_problem()
        return built, config.build_model(built, model_key(config.seed))

    result = time_scaling(
        make, vary or known, _numbers(factors), [int(d) for d in _numbers(dimensions)], repeats
    )
    if plot is not None:
        draw_scaling(result, plot)
    if as_json:
        print(json.dumps(result, indent=2))
        return
    for name, series in result.items():
        exponent = series["exponent"]
        growth = "" if exponent is None else f": time grows as {name}^{exponent:.2f}"
        table = Table("N", "P", "d", "devices", "ms/step", "memory", title=name + growth)
        for step in series["steps"]:
            table.add_row(
                f"{step['rows']:,}",
                f"{step['parameters']:,}",
                str(step["dimension"]),
                str(step["devices"]),
                f"{1000 * step['step_seconds']:.2f}",
                show_bytes(step["memory_bytes"]),
            )
        Console().print(table)


@bench_app.command("nystrom")
def bench_nystrom(
    rows: Annotated[int, typer.Option(min=10, help="Rows of the kernel.")] = 5000,
    sketches: Annotated[
        str, typer.Option(help="Sizes of the sketch, as shares of the rows.")
    ] = "0.2,0.4,0.6,0.8",
    runs: Annotated[int, typer.Option(min=1, help="Runs to take the mean of.")] = 100,
    warm_ups: Annotated[int, typer.Option(min=0, help="Runs before that.")] = 10,
    longest: Annotated[
        float, typer.Option(help="Seconds after which a measurement ends with fewer runs.")
    ] = 60.0,
    as_json: JsonFlag = False,
) -> None:
    """Compare the standard and the GPU-efficient Nyström algorithm: a sketch and a solve.

    \b
    natpinn bench nystrom
    natpinn bench nystrom --rows 1000 --sketches 0.1 --runs 10
    """
    from ..bench.sketches import compare_algorithms

    shares = _numbers(sketches)
    if not all(share < 1 for share in shares):
        raise InputError(f"sketches are shares of the rows below 1, got {sketches!r}")
    found = compare_algorithms(rows, shares, runs, warm_ups, longest)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print_nystrom(f"N = {rows:,}: standard and GPU-efficient", found)


def print_nystrom(title: str, found: dict[str, Any]) -> None:
    from ..memory import show_bytes

    table = Table("sketch", "seconds", "memory", "error", "runs", "speedup", title=title)
    for share, row in found.items():
        pair = row["standard"], row["gpu"]
        table.add_row(
            f"{float(share):.0%}",
            " ".join(f"{each['seconds']:.4f}" for each in pair),
            " ".join(show_bytes(each["peak_memory_bytes"]) for each in pair),
            " ".join(f"{each['error']:.1e}" for each in pair),
            " ".join(str(each["runs"]) for each in pair),
            f"{row['speedup']:.1f}",
        )
    show_table(table)


def _numbers(text: str) -> list[float]:
    try:
        numbers = [float(number) for number in text.split(",")]
        assert all(0 < number < math.inf for number in numbers)
    except (ValueError, AssertionError):
        raise InputError(f"numbers are positive and written 0.5,1,2, got {text!r}") from None
    return numbers


def _print_step(result: dict[str, Any]) -> None:
    step, floor = 1000 * result["step_seconds"], 1000 * result["floor_seconds"]
    parts = ", ".join(f"{name} {1000 * part:.2f}" for name, part in result["parts"].items())
    print(
        f"{result['problem']}, {result['method']}: "
        f"N = {result['rows']:,}, P = {result['parameters']:,}\n"
        f"  step {step:.2f} ms, floor {floor:.2f} ms, ratio {result['floor_ratio']:.2f}, "
        f"peak {result['peak_memory_bytes'] / 2**30:.2f} GiB on {result['device']}\n"
        f"  parts, each compiled by itself, in ms: {parts}\n"
        f"  step / sum of its parts {result['parts_ratio']:.2f}"
    )
