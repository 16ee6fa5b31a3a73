"""Who shares the machine with others is told that steps are slow, once."""

from typing import cast

import jax
import pytest

import natpinn
from natpinn.planning import forecast
from natpinn.planning.planned import plan_step
from natpinn.runs.slowness import slowness
from natpinn.training.progress import Progress
from natpinn.training.record import Record
from natpinn.training.snapshot import Snapshot


def progress(step, seconds):
    return Progress(step, seconds, Record(), False, "l2", None, 60.0, cast("Snapshot", None))


@pytest.mark.parametrize(("busy", "end"), [(1.5, "a"), (0.2, "")])
def test_steps_three_times_as_long_as_expected_are_told_once(busy, end, capsys, monkeypatch):
    monkeypatch.setattr("natpinn.runs.slowness.cores", lambda: 2)
    monkeypatch.setattr("natpinn.runs.slowness.idle_cores", lambda: 2 - busy)
    told = slowness(0.1)
    told(progress(1000, 10.0))  # where an earlier process stopped, which was fast
    told(progress(1003, 11.0))  # too early to say
    assert capsys.readouterr().err == ""
    told(progress(1006, 12.1))
    told(progress(1009, 14.1))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("steps take 350 ms, and about 100 ms are expected of this CPU")
    assert ("other processes keep 1.5 of 2 cores busy" in line) == bool(end)


@pytest.mark.parametrize("expected", [0.2, None])
def test_nothing_is_said_of_other_steps(expected, capsys):
    told = slowness(expected)
    told(progress(10, 100.0))  # where an earlier process stopped, which was slow
    told(progress(16, 102.1))
    assert capsys.readouterr().err == ""


def planned(optimizer, interior=40):
    problem = natpinn.problems.get("poisson_2d", points={"interior": interior, "boundary": 10})
    objective, theta = problem.objective(problem.default_model(jax.random.key(0)))
    return plan_step(objective, theta, optimizer)


def test_what_is_expected_follows_from_operations(monkeypatch):
    monkeypatch.setattr(forecast, "_operations_per_second", lambda: 1e9)
    few, many = (forecast.expected_step_seconds(planned(natpinn.spring(), n)) for n in (100, 400))
    assert few is not None
    assert many is not None
    assert forecast.STEP_SECONDS < few < many / 3
    assert forecast.expected_step_seconds(planned(natpinn.adam())) is None  # no system


def test_a_core_reaches_some_operations():
    assert 1e7 < forecast._operations_per_second() < 1e13
