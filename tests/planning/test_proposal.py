"""What net and how many points are proposed for a step."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from natpinn import (
    Box,
    Condition,
    Data,
    Problem,
    adam,
    auto,
    laplacian,
    load,
    memory,
    resume,
    solve,
)
from natpinn.models.theta import parameter_count
from natpinn.planning import proposal, speed
from natpinn.planning import size as sizes
from natpinn.planning.proposal import Worth, propose_points, propose_widths
from natpinn.training.limits import Limits

KEY = jax.random.key(0)


USUAL = Worth.by_kind()


def problem(dimension=2, outputs=1, widths=(32, 32), **points):
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
        widths=widths,
    )


def proposed(found, widths=None, limit=None):
    return propose_points(found, found.default_model(KEY, widths), auto(), USUAL, limit)


def test_a_step_that_is_long_here_is_worth_a_word():
    def advice(points, optimizer):
        found = problem(2, inside=points, edge=20)
        objective, theta = found.objective(found.default_model(KEY, (128, 128)), found.sample(KEY))
        return proposal.advise(found, sizes.size_of(objective, theta, optimizer))

    assert advice(50, auto()) == ""
    assert advice(6000, auto()).endswith("--set points.inside=none --set points.edge=none")
    assert advice(6000, adam()) == ""


def test_points_grow_with_the_dimension_up_to_what_pays():
    wide = (40, 40)
    assert proposed(problem(1), wide) == {"inside": 200, "edge": 40}
    square = proposed(problem(2), wide)
    assert 400 < square["inside"] < 800
    assert square["edge"] == round(0.2 * square["inside"])
    assert proposed(problem(2), (64, 64))["inside"] == pytest.approx(square["inside"], rel=0.3)
    huge = Worth(1e6, "")
    net = problem(2).default_model(KEY, (200, 200))
    assert propose_points(problem(2), net, auto(), huge)["inside"] <= 800 * huge.points


def test_what_was_said_stays_as_it_was_said():
    assert proposed(problem(inside=50)) == {"edge": 160}
    assert proposed(problem(inside=50, edge=20)) == {}
    assert proposed(problem().with_points({"edge": 20})).keys() == {"inside"}
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
    assert proposed(found)["inside"] > 400


def test_none_asks_for_a_proposal():
    sized = problem(inside=50, edge=20).with_points({"inside": None})
    assert proposed(sized) == proposed(problem(edge=20))


def test_steps_stay_short_and_in_memory():
    found = problem(4)
    large = proposed(found, (256, 256))
    assert large["inside"] < 1000  # of 3200: the operations of a step on a CPU
    small = proposed(found, (256, 256), limit=memory.used_bytes() + 2 * 10**7)
    assert small["inside"] < large["inside"] / 2


def test_a_run_records_what_was_proposed(tmp_path):
    solution = solve(problem(), steps=2, progress=False, out=tmp_path / "run")
    expected = {**proposed(problem()), "data": 7}
    assert solution.summary["points"] == expected
    assert solution.config["points"] == expected
    again = resume(tmp_path / "run", problem(), steps=3, progress=False)
    assert again.summary["points"] == expected


def test_longer_runs_and_faster_devices_have_larger_nets_and_more_points():
    nets = [propose_widths(problem(), Worth(growth, "")) for growth in (0.1, 1.0, 10.0, 1000.0)]
    assert nets[0] < nets[1] < nets[2] < nets[3]
    assert all(len(net) == 3 for net in nets)
    wide = (100, 100)
    points = [
        propose_points(problem(), problem().default_model(KEY, wide), auto(), Worth(growth, ""))
        for growth in (0.1, 1.0, 10.0)
    ]
    assert points[0]["inside"] < points[1]["inside"] < points[2]["inside"]


def test_a_net_is_no_larger_than_few_rows_need():
    at_least = proposal.FEWEST_PARAMETERS
    line = Problem({"all": Condition(lambda u, x: u(x), Box([0], [1]), points=10)})
    net = line.default_model(KEY, propose_widths(line, Worth(1000.0, "")))
    assert at_least <= parameter_count(net) < 2 * at_least


def test_a_steps_worth_follows_from_budget_and_speed_and_not_from_the_clock_with_steps(monkeypatch):
    monkeypatch.setattr(proposal, "operations_per_second", lambda: 1e11)
    short, long = Worth.of(Limits(budget=10.0)), Worth.of(Limits(budget=1000.0))
    assert 50 <= long.growth / short.growth <= 200
    assert long.operations / short.operations == pytest.approx(
        (long.growth / short.growth) ** (2 / 3)
    )
    assert "1000 s at 100 GFLOP/s" in long.reason
    assert Worth.of(Limits(budget=math.inf)).growth == proposal.LARGEST
    monkeypatch.setattr(proposal, "operations_per_second", lambda: 1e12)
    assert Worth.of(Limits(budget=10.0)).growth > short.growth
    assert Worth.of(Limits(steps=5)) == Worth.of(Limits(steps=5000, budget=10.0)) == USUAL


def test_natpinns_own_net_is_proposed_where_nobody_says_its_widths(tmp_path):
    free = problem(widths=None)
    solution = solve(free, steps=2, progress=False, out=tmp_path / "run")
    widths = solution.config["model"]["widths"]
    assert tuple(widths) == propose_widths(free, USUAL)
    rows = solution.summary["points"]["inside"] + solution.summary["points"]["edge"]
    assert 0.75 * solution.summary["parameters"] < rows < 0.9 * solution.summary["parameters"]
    again = resume(tmp_path / "run", free, steps=3, progress=False)
    assert again.config["model"] == solution.config["model"]
    assert load(tmp_path / "run", problem=free).model.layers[0].out_features == widths[0]


def test_speed_is_measured_in_the_precision_of_the_run():
    assert 1e8 < speed.operations_per_second() < 1e16
