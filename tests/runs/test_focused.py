"""Runs whose points follow the residual."""

import pytest

from natpinn import Focused, InputError, load, problems, resume, solve
from natpinn.runs.resolve import resolve

SMALL = problems.get("poisson_2d", points={"interior": 30, "boundary": 10}, widths=(8, 8))


def test_a_run_with_a_focused_sampler_goes_on_as_if_never_stopped(tmp_path):
    problem = SMALL.with_sampler(Focused(candidates=3))
    whole = solve(problem, optimizer="spring", steps=12, progress=False)
    solve(problem, optimizer="spring", steps=7, progress=False, out=tmp_path / "run")
    rest = resume(tmp_path / "run", problem, steps=12, progress=False)
    assert rest.summary["final_validation_loss"] == whole.summary["final_validation_loss"]
    assert load(tmp_path / "run", problem=problem).summary["steps"] == 12
    even = solve(SMALL, optimizer="spring", steps=12, progress=False)
    assert even.summary["final_validation_loss"] != whole.summary["final_validation_loss"]


@pytest.mark.parametrize("held", [{"sampling.held": True}, {"sampling.steps_per_batch": 5}])
def test_points_that_are_held_follow_no_residual(held):
    settings = {"problem.name": "poisson_2d", "sampling.candidates": 8, **held}
    with pytest.raises(InputError, match="needs new points at each step: set it to 1"):
        resolve(settings)


def test_a_sampler_that_follows_the_residual_needs_new_points():
    config = resolve({"problem.name": "poisson_2d", "sampling.steps_per_batch": 5})
    with pytest.raises(InputError, match="leave out the Focused sampler"):
        config.apply_sizes(SMALL.with_sampler(Focused()))
