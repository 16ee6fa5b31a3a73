"""Experiments run what is missing, go on with what was cut short, and explain bad files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from natpinn import InputError
from natpinn.cli import main
from natpinn.runs.records import METRICS, read_history
from natpinn.runs.settings import flatten, read_file
from natpinn.search import experiment

FILES = sorted((Path(__file__).parents[2] / "experiments").glob("*.toml"))
SMALL = """
title = "Small"
budget = 0.6
seeds = [0]

[settings]
problem = { name = "poisson_2d" }
points = { interior = 30, boundary = 12 }
evaluation = { points = 200 }
model = { widths = [8] }

[methods.spring]
optimizer = { name = "spring", damping = 1e-6 }

[methods.adam]
optimizer = { name = "adam" }

[search.spring.optimizer]
damping = { log_uniform = [1e-9, 1e-3] }
"""
TABLE = """
title = "Sketches"

[nystrom]
rows = 40
sketches = [0.5, 0.25]
runs = 1
warm_ups = 0
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_the_experiments_of_the_paper_are_sound(path):
    read = experiment.read(path)
    assert read.title
    for method in read.search:
        read.search_for(method, 1.0)
    for one in experiment.plan(read, Path("nowhere")):
        assert one.state().name == "missing"


def test_every_experiment_is_there():
    assert {path.stem for path in FILES} == {
        *("poisson_5d", "poisson_5d_fixed", "poisson_5d_large", "poisson_5d_large_fixed"),
        *("poisson_10d", "poisson_10d_fixed"),
        *("poisson_100d", "poisson_100d_fixed", "poisson_100d_large"),
        *("heat_4d", "heat_4d_fixed", "fokker_planck", "fokker_planck_fixed"),
        *("poisson_5d_baselines", "heat_4d_baselines"),
        *("effective_dimension", "nystrom_table", "auto"),
    }


def test_what_is_done_is_not_run_again_and_what_is_short_goes_on(small, tmp_path):
    read = experiment.read(small)
    half = experiment.plan(read, tmp_path, scale=0.5)
    states = [state.name for _, state in experiment.run_all(half, progress=False)]
    assert states == ["finished", "finished"]
    folder = tmp_path / "small" / "spring-0"
    first = read_history(folder)
    written = (folder / METRICS).stat().st_mtime_ns
    list(experiment.run_all(half, progress=False))
    assert (folder / METRICS).stat().st_mtime_ns == written

    whole = experiment.plan(read, tmp_path, methods=["spring"])
    assert whole[0].state().name == "unfinished"
    assert [state.name for _, state in experiment.run_all(whole, progress=False)] == ["finished"]
    longer = read_history(folder)
    shared = [r for r in first[:-1] if r in longer]
    assert shared == first[:-1]
    assert longer[-1]["seconds"] >= 0.6 > first[-1]["seconds"]

    small.write_text(SMALL + '\n[methods.spring.points]\ninterior = "none"\n')
    proposed = experiment.plan(experiment.read(small), tmp_path, methods=["spring"])
    assert proposed[0].state().name == "finished"  # with as many points as were proposed

    small.write_text(SMALL.replace("1e-6", "1e-5"))
    changed = experiment.plan(experiment.read(small), tmp_path, methods=["spring"])
    ((_, state),) = experiment.run_all(changed, progress=False)
    assert state.name == "outdated"
    assert "begun with optimizer.damping = 1e-06" in state.message


def test_a_run_that_fails_does_not_end_the_others(small, tmp_path):
    small.write_text(
        SMALL.replace('"adam" }', '"adam" }\ntrack = { quantities = ["effective_dimension"] }')
    )
    planned = experiment.plan(
        experiment.read(small), tmp_path, scale=0.1, methods=["adam", "spring"]
    )
    states = [state for _, state in experiment.run_all(planned, progress=False)]
    assert [state.name for state in states] == ["failed", "finished"]
    assert "damping" in states[0].message


def test_seeds_and_methods_are_chosen(small, tmp_path):
    read = experiment.read(small)
    planned = experiment.plan(read, tmp_path, seeds=range(3), methods=["adam"])
    assert [one.folder.name for one in planned] == ["adam-0", "adam-1", "adam-2"]
    with pytest.raises(InputError, match="did you mean 'adam'"):
        experiment.plan(read, tmp_path, methods=["adm"])
    with pytest.raises(InputError, match="positive"):
        experiment.plan(read, tmp_path, scale=0.0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "Small"', "title = ", "not valid TOML"),
        ('title = "Small"', "", "title is missing"),
        ("budget = 0.6", "budget = -1", "budget must be positive"),
        ("budget = 0.6", 'budget = "long"', "a number of seconds"),
        ("[methods.adam]", "[method.adam]", "did you mean 'methods'"),
        ('"poisson_2d"', '"poison_2d"', "did you mean 'poisson_2d'"),
        ("damping = 1e-6", "dampin = 1e-6", r"methods\.spring: unknown setting"),
        ("[search.spring", "[search.sprig", "did you mean 'spring'"),
        ("log_uniform", "loguniform", "did you mean 'log_uniform'"),
        ('"poisson_2d"', '"mine:problem"', "code of your own"),
        ("[methods.adam]", '[methods."../adam"]', "a method's name"),
        ("seeds = [0]", "seeds = []", "whole numbers from 0"),
        ("seeds = [0]", 'seeds = ["x"]', "whole numbers from 0"),
        ('{ name = "adam" }', '{ name = "adam" }\ntrain = { steps = 3 }', "not for methods"),
        ("[search.spring.optimizer]", "[search.spring.problem]", "cannot be looked for"),
        ("log_uniform = [1e-9, 1e-3]", "uniform = [0, 1]", "damping must be above 0"),
        ("[methods.adam]", "[methods]\nsgd = 3\n[methods.adam]", "sgd must be a table"),
    ],
)
def test_wrong_files_are_explained(small, old, new, message):
    small.write_text(SMALL.replace(old, new))
    with pytest.raises(InputError, match=message):
        experiment.read(small)


def test_the_commands(small, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["natpinn", "experiment", *map(str, arguments)])
        main()
        return capsys.readouterr().out

    short = ("--budget-scale", "0.2")
    rows = json.loads(run("run", small, *short, "--method", "adam", "--json"))
    assert [(row["method"], row["state"]) for row in rows] == [("adam", "finished")]
    rows = json.loads(run("status", small, *short, "--json"))
    assert [row["state"] for row in rows] == ["missing", "finished"]
    assert "missing" in run("status", small, *short)
    tuned = json.loads(run("tune", small, "spring", *short, "--trials", 1, "--refine", 1, "--json"))
    assert tuned["is_complete"]
    best = flatten(read_file(Path("studies/small-spring/best.toml")))
    assert 1e-9 <= best["optimizer.damping"] <= 1e-3

    (tmp_path / "table.toml").write_text(TABLE)
    table = json.loads(run("run", "table.toml", "--json"))
    assert table["0.5"]["gpu"]["error"] > 0
    assert "finished" in run("status", "table.toml")


def test_a_table_of_sketches_is_measured_row_by_row(tmp_path, monkeypatch):
    (tmp_path / "table.toml").write_text(TABLE)
    table = experiment.read(tmp_path / "table.toml")
    assert experiment.sketches_state(table, tmp_path).name == "missing"
    honest = experiment.compare_algorithms

    def stop_at_the_second(rows, shares, *options):
        if shares == [0.25]:
            raise KeyboardInterrupt
        return honest(rows, shares, *options)

    with monkeypatch.context() as patch:
        patch.setattr(experiment, "compare_algorithms", stop_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            experiment.compare_sketches(table, tmp_path)
    assert experiment.sketches_state(table, tmp_path).name == "unfinished"
    path = tmp_path / "table" / "nystrom.json"
    first = json.loads(path.read_text())["sketches"]["0.5"]
    found = experiment.compare_sketches(table, tmp_path)
    assert found["0.5"] == first
    assert found["0.25"]["gpu"]["error"] > found["0.5"]["gpu"]["error"] > 0
    assert experiment.sketches_state(table, tmp_path).name == "finished"
    other = replace(table, nystrom={**(table.nystrom or {}), "runs": 7})
    assert experiment.sketches_state(other, tmp_path).name == "outdated"
    with pytest.raises(InputError, match="was begun with runs = "):
        experiment.compare_sketches(other, tmp_path)
    with pytest.raises(InputError, match="positive number, got 0"):
        experiment.compare_sketches(table, tmp_path, 0.0)
    path.write_text("{")
    with pytest.raises(InputError, match="remove it, and run again"):
        experiment.compare_sketches(table, tmp_path)
