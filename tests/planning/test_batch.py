"""How many points are proposed for a step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from natpinn import Box, Condition, Data, Problem, adam, auto, laplacian, memory, resume, solve
from natpinn.planning import batch_size as batch
from natpinn.planning import size as sizes

KEY = jax.random.key(0)


def problem(dimension=2, outputs=1, **points):
    cube = Box.unit(dimension)
    places = np.full((7, dimension), 0.5)

    def equation(u, x):
        return jnp.stack(outputs * [laplacian(u)(x)]) if outputs > 1 else laplacian(u)(x)

    return Problem(
        {
            "inside": Condition(equation, cube, points=points.get("inside")),
            "edge": Condition(lambda u, x: u(x), cube.boundary, points=points.get("edge")),
            "data": Condition(lambda u, point: u(point[0]) - point[1], Data(places, np.ones(7))),
        },
        name="mine",
        widths=(32, 32),
    )


def proposed(found, widths=None, limit=None):
    return batch.propose(found, found.default_model(KEY, widths), auto(), limit)


def test_a_step_that_is_long_here_is_worth_a_word():
    def advice(points, optimizer):
        found = problem(2, inside=points, edge=20)
        objective, theta = found.objective(found.default_model(KEY, (128, 128)), found.sample(KEY))
        return batch.advise(found, sizes.size_of(objective, theta, optimizer))

    assert advice(50, auto()) == ""
    assert advice(6000, auto()).endswith("--set points.inside=none --set points.edge=none")
    assert advice(6000, adam()) == ""


def test_points_grow_with_the_dimension_up_to_what_pays():
    wide = (64, 64)
    assert proposed(problem(1), wide) == {"inside": 100, "edge": 20}
    assert proposed(problem(2), wide) == {"inside": 400, "edge": 80}
    assert 400 < proposed(problem(3), wide)["inside"] <= 900


def test_what_was_said_stays_as_it_was_said():
    assert proposed(problem(inside=50)) == {"edge": 80}
    assert proposed(problem(inside=50, edge=20)) == {}
    assert proposed(problem().with_points({"edge": 20})) == {"inside": 400}
    assert not problem().conditions["inside"].is_sized
    assert problem().conditions["data"].is_sized


@pytest.mark.parametrize("outputs", [1, 3])
def test_there_are_no_more_rows_than_parameters(outputs):
    found = problem(outputs=outputs)
    points = proposed(found, (16,))
    rows = outputs * points["inside"] + points["edge"]
    assert 0.6 * 65 < rows <= 65


def test_what_others_have_does_not_starve_the_equation():
    square, places = Box.unit(2), np.full((3000, 2), 0.5)
    found = Problem(
        {
            "inside": Condition(lambda u, x: laplacian(u)(x), square),
            "data": Condition(lambda u, point: u(point[0]), Data(places, np.ones(3000))),
        }
    )
    assert proposed(found) == {"inside": 400}


def test_none_asks_for_a_proposal():
    sized = problem(inside=50, edge=20).with_points({"inside": None})
    assert proposed(sized) == {"inside": 400}


def test_steps_stay_short_and_in_memory():
    found = problem(4)
    large = proposed(found, (256, 256))
    assert large["inside"] < 1000  # of 1600: the operations of a step on a CPU
    small = proposed(found, (256, 256), limit=memory.used_bytes() + 2 * 10**7)
    assert small["inside"] < large["inside"] / 2


def test_a_run_records_what_was_proposed(tmp_path):
    solution = solve(problem(), steps=2, progress=False, out=tmp_path / "run")
    expected = {"inside": 400, "edge": 80, "data": 7}
    assert solution.summary["points"] == expected
    assert solution.config["points"] == expected
    again = resume(tmp_path / "run", problem(), steps=3, progress=False)
    assert again.summary["points"] == expected
