"""How many points are proposed for a step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from natpinn import Box, Condition, Data, Problem, auto, batch, laplacian, memory, resume, solve

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


def test_points_grow_with_the_dimension_up_to_what_pays():
    wide = (64, 64)
    assert proposed(problem(1), wide) == {"inside": 200, "edge": 40}
    assert proposed(problem(2), wide) == {"inside": 800, "edge": 160}
    assert 800 < proposed(problem(3), wide)["inside"] <= 1800
    assert proposed(problem(9), (64, 64, 64))["inside"] <= batch.MOST_POINTS


def test_what_was_said_stays_as_it_was_said():
    assert proposed(problem(inside=50)) == {"edge": 160}
    assert proposed(problem(inside=50, edge=20)) == {}
    assert proposed(problem().with_points({"edge": 20})) == {"inside": 800}
    assert not problem().conditions["inside"].is_sized
    assert problem().conditions["data"].is_sized


@pytest.mark.parametrize("outputs", [1, 3])
def test_there_are_no_more_rows_than_parameters(outputs):
    found = problem(outputs=outputs)
    points = proposed(found, (16,))
    rows = outputs * points["inside"] + points["edge"] + 7
    assert 0.6 * 65 < rows <= 65


def test_steps_stay_short_and_in_memory():
    found = problem(4)
    large = proposed(found, (256, 256))
    assert large["inside"] < 2000  # of 3000: the operations of a step on a CPU
    small = proposed(found, (256, 256), limit=memory.used_bytes() + 5 * 10**7)
    assert small["inside"] < large["inside"] / 2


def test_a_run_records_what_was_proposed(tmp_path):
    solution = solve(problem(), steps=2, progress=False, out=tmp_path / "run")
    expected = {"inside": 800, "edge": 160, "data": 7}
    assert solution.summary["points"] == expected
    assert solution.config["points"] == expected
    again = resume(tmp_path / "run", problem(), steps=3, progress=False)
    assert again.summary["points"] == expected
