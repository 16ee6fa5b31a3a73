"""Presets and experiments have the best settings that were published, or say here why not."""

import csv
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import natpinn
from natpinn.runs.names import optimizer_defaults
from natpinn.runs.resolve import resolve
from natpinn.runs.settings import flatten
from natpinn.search import experiment

ROOT = Path(__file__).parents[2]
Case = tuple[str, str, str]  # problem, optimizer, step rule
RULES = {"line_search": "grid", "fixed_lr": "fixed", "auto": "quadratic"}  # published names
OF_BASELINES = {  # published names of settings
    "damping": "optimizer.damping",
    "momentum": "optimizer.momentum",
    "cg_max_iter": "optimizer.most_iterations",
    "adapt_damping": "optimizer.adapt_damping",
    "curvature_opt": "optimizer.curvature",
    "history_size": "optimizer.memory_size",
    "ema_factor": "optimizer.average",
    "initialize_to_identity": "optimizer.start_at_identity",
}
LBFGS_STEPS = 20  # of ours, on one batch, in a published one

# Presets that no published run has.
OWN: dict[Case, dict[str, Any]] = {
    ("poisson_2d", "spring", "fixed"): {  # natpinn's own problem, for demonstrations
        "optimizer.damping": 1e-8,
        "optimizer.momentum": 0.8,
        "optimizer.learning_rate": 0.1,
        "optimizer.norm_cap": 1e-3,
    },
}
# Presets with the settings of another problem: the harmonic solution in 100 dimensions is in the
# paper's text, its runs had the other; SPRING with a line search ran on heat in 10 dimensions.
TAKEN_FROM = {
    **{
        ("poisson_100d_harmonic", optimizer, rule): "poisson_100d"
        for optimizer in ("engd_w", "spring")
        for rule in ("fixed", "grid")
    },
    ("heat_4d", "spring", "grid"): "heat_10d",
}
# Settings that the tables of published runs leave out.
UNRECORDED: dict[Case, dict[str, Any]] = {
    ("poisson_5d", "spring", "fixed"): {"optimizer.norm_cap": 1e-3},
    ("poisson_10d", "spring", "fixed"): {"optimizer.norm_cap": 1e-3},
    ("poisson_100d", "spring", "fixed"): {"optimizer.norm_cap": 1e-3},
    ("poisson_100d_harmonic", "spring", "fixed"): {"optimizer.norm_cap": 1e-3},
    ("heat_4d", "spring", "fixed"): {"optimizer.norm_cap": "none"},
    ("log_fokker_planck_9d", "spring", "fixed"): {"optimizer.norm_cap": "none"},
    ("poisson_5d", "engd", "grid"): {
        "optimizer.average": 0.0,
        "optimizer.start_at_identity": True,
    },
}
# What a method of an experiment has of its own, beside the published settings.
OF_METHODS: dict[tuple[str, str], dict[str, Any]] = {
    ("poisson_5d", "engd_same_net"): {"model.widths": [64, 64, 48, 48]},
}
# Methods of an experiment for which no settings were published: the file says so.
OF_OUR_OWN = {
    ("poisson_5d_baselines", "sgd"),
    ("poisson_5d_baselines", "adam_decay"),
    ("heat_4d_baselines", "sgd"),
    ("heat_4d_baselines", "adam"),
}
SKETCHES = {"nystrom_gpu": "gpu", "nystrom_standard": "standard"}


@dataclass(frozen=True)
class Published:
    """One published run, as natpinn names its settings."""

    case: Case
    points: tuple[int, int]  # in the interior, and of all other conditions
    error: float
    settings: dict[str, Any]


def rows(name: str) -> list[dict[str, str]]:
    with (ROOT / "docs" / "results" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def points_of(row: dict[str, str]) -> tuple[int, int]:
    return int(row["n_interior"]), int(row["n_condition"])


def natural(row: dict[str, str]) -> Published:
    """A run of published.csv."""
    own_rule = {"hessian_free": "armijo"}.get(row["optimizer"], "fixed")
    case = (row["problem"], row["optimizer"], RULES.get(row["step_size"], own_rule))
    columns = {"damping": "damping", "momentum": "momentum", "lr": "learning_rate"}
    found = {name: float(row[column] or 0) for column, name in columns.items()}
    settings: dict[str, Any] = {  # a momentum of 0 is none
        f"optimizer.{name}": number for name, number in found.items() if number
    }
    settings["model.widths"] = [int(width) for width in row["model"].split("-")[2:]]
    return Published(case, points_of(row), float(row["best_l2"]), settings)


def baseline(row: dict[str, str]) -> Published:
    """A run of published_baselines.csv."""
    told = dict(pair.split("=") for pair in row["settings"].split("; "))
    own_rule = {"hessian_free": "armijo", "lbfgs": "fixed"}.get(row["optimizer"], "")
    case = (row["problem"], row["optimizer"], own_rule or RULES[told["lr"]])
    settings = {OF_BASELINES[key]: value(told[key]) for key in OF_BASELINES.keys() & told.keys()}
    held = int(row["steps_per_batch"]) * (LBFGS_STEPS if row["optimizer"] == "lbfgs" else 1)
    settings["sampling.steps_per_batch"] = held
    return Published(case, points_of(row), float(row["best_l2"]), settings)


def value(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return {"True": True, "False": False}.get(text, text)


TABLES = (
    [natural(row) for row in rows("published.csv")],
    [baseline(row) for row in rows("published_baselines.csv")],
)


def best(case: Case, points: tuple[int, int] | None = None) -> list[Published]:
    """Of each table the best run of a case, with so many points if there is one."""
    published = (TAKEN_FROM.get(case, case[0]), *case[1:])
    found = []
    for table in TABLES:
        runs = [run for run in table if run.case == published]
        with_points = [run for run in runs if run.points == points] or runs
        found += sorted(with_points, key=lambda run: run.error)[:1]
    return found


def presets() -> dict[Case, dict[str, Any]]:
    (path,) = Path(natpinn.__file__).parent.rglob("presets.toml")
    return {
        (problem, optimizer, rule): flatten(settings)
        for problem, of_problem in tomllib.loads(path.read_text()).items()
        for optimizer, of_optimizer in of_problem.items()
        for rule, settings in of_optimizer.items()
    }


PRESETS = presets()


def total(settings: dict[str, Any]) -> tuple[int, int]:
    sizes = {key: n for key, n in settings.items() if key.startswith("points.")}
    inside = sizes.pop("points.interior")
    return inside, sum(sizes.values())


def chosen(case: Case) -> dict[str, Any]:
    """What a run has where nobody sets more than its problem, optimizer and step rule."""
    problem, optimizer, rule = case
    given = {"problem.name": problem, "optimizer.name": optimizer}
    if "optimizer.line_search" in optimizer_defaults(optimizer):
        given["optimizer.line_search"] = "none" if rule == "fixed" else rule
    return flatten(resolve(given).as_dict())


@pytest.mark.parametrize("case", PRESETS, ids=".".join)
def test_a_preset_is_the_best_published_run(case):
    settings, runs = chosen(case), best(case)
    wanted = dict(OWN.get(case, {}))
    for run in runs:
        assert total(settings) == run.points
        wanted |= run.settings
    wanted |= UNRECORDED.get(case, {})
    assert {key: settings[key] for key in wanted} == wanted
    assert runs or case in OWN
    free = {key for key in PRESETS[case] if key.startswith("points.")}  # seen in their sum
    assert PRESETS[case].keys() <= wanted.keys() | free  # nothing that was not published


def test_every_published_case_has_a_preset():
    cases = {run.case for table in TABLES for run in table}
    taken = {(TAKEN_FROM.get(case, case[0]), *case[1:]) for case in PRESETS.keys() - OWN.keys()}
    assert taken == cases


FILES = sorted((ROOT / "experiments").glob("*.toml"))
METHODS = [
    (path.stem, method, settings)
    for path in FILES
    for method, settings in experiment.read(path).methods.items()
    if (path.stem, method) not in OF_OUR_OWN
]


@pytest.mark.parametrize(
    ("name", "method", "given"), METHODS, ids=[f"{n}.{m}" for n, m, _ in METHODS]
)
def test_a_method_of_an_experiment_has_published_settings(name, method, given):
    """Of the run with its batch, or of the best one where no published run has that batch."""
    if given["optimizer.name"] == "auto":
        assert set(given) == {"problem.name", "optimizer.name"}
        return
    settings = flatten(resolve(given).as_dict())
    exact = given["optimizer.name"].removesuffix("_nystrom")
    rule = settings.get("optimizer.line_search", "none")
    case = (given["problem.name"], exact, "fixed" if rule == "none" else rule)
    runs = best(case, total(settings))
    assert runs
    wanted: dict[str, Any] = {}
    for run in runs:
        wanted |= run.settings
    wanted |= UNRECORDED.get(case, {}) | OF_METHODS.get((name, method), {})
    sketch = SKETCHES.get(method.rpartition("_")[0])
    if sketch is not None:
        wanted |= {"optimizer.rank": 0.1, "optimizer.variant": sketch}
    assert {key: settings[key] for key in wanted} == wanted
    rows = method.rpartition("_")[2]
    if rows.isdecimal():
        assert sum(total(settings)) == int(rows)
