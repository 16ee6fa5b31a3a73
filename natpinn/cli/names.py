"""The command natpinn list."""

import json

from .options import JsonFlag


def list_names(as_json: JsonFlag = False) -> None:
    """List the problems and the optimizers, with their settings and defaults."""
    from rich.console import Console
    from rich.table import Column, Table

    from ..problems.catalogue import CATALOGUE
    from ..runs.names import OPTIMIZERS, optimizer_defaults

    if as_json:
        print(json.dumps(_names(), indent=2, ensure_ascii=False))
        return
    console = Console()
    rest = ("equation", "net", "points per step")
    problems = Table(Column("problem", no_wrap=True), *rest, title="Problems")
    for name, entry in CATALOGUE.items():
        net = "-".join(map(str, entry.widths))
        points = " + ".join(f"{n} {key}" for key, n in entry.points.items())
        problems.add_row(name, entry.description, net, points)
    rest = ("what it is", "settings and defaults")
    optimizers = Table(Column("optimizer", no_wrap=True), *rest, title="Optimizers")
    for name, build in OPTIMIZERS.items():
        defaults = optimizer_defaults(name)
        settings = "\n".join(f"{key} = {value}" for key, value in defaults.items())
        optimizers.add_row(name, (build.__doc__ or "").split("\n")[0], settings)
    console.print(problems)
    console.print(optimizers)
    console.print("Your own problem: natpinn solve module:attribute (a Problem of your own file).")


def _names() -> dict[str, object]:
    from ..problems.catalogue import CATALOGUE
    from ..runs.names import OPTIMIZERS, optimizer_defaults

    problems = {
        name: {
            "description": entry.description,
            "dimension": entry.dimension,
            "widths": entry.widths,
            "points": entry.points,
        }
        for name, entry in CATALOGUE.items()
    }
    optimizers = {n: optimizer_defaults(n) for n in OPTIMIZERS}
    return {"problems": problems, "optimizers": optimizers}
