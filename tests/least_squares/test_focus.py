"""Points that follow the residual: which are kept, and that the loss stays what it is."""

from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from natpinn.domains.box import Box
from natpinn.domains.data import Data
from natpinn.domains.sampling import Focused, Held, Sobol, Uniform
from natpinn.equations.condition import Condition
from natpinn.errors import InputError
from natpinn.least_squares.focus import chances, keep
from natpinn.least_squares.objective import LeastSquares
from natpinn.parallel.plan import Plan

KEY = jax.random.key(0)
SQUARES = jnp.asarray(np.random.default_rng(0).exponential(size=80) ** 4)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_chances_are_probabilities_of_so_many(share):
    found = np.asarray(chances(SQUARES, 10, share))
    assert found.sum() == pytest.approx(10)
    assert found.max() <= 1
    assert found.min() >= 10 * (1 - share) / 80 * (1 - 1e-12)
    order = np.argsort(np.asarray(SQUARES))
    assert (np.diff(found[order]) >= 0).all()


@pytest.mark.parametrize("squares", [jnp.zeros(8), jnp.full(8, 1e300), jnp.full(8, jnp.nan)])
def test_where_no_residual_stands_out_all_are_kept_as_often(squares):
    np.testing.assert_allclose(chances(squares, 2, 0.9), 0.25)


def test_one_infinite_residual_does_not_take_the_others_with_it():
    found = chances(jnp.array([1.0, jnp.inf, 3.0, jnp.nan]), 2, 0.5)
    assert np.isfinite(found).all()
    assert float(found.sum()) == pytest.approx(2)


def test_each_is_kept_as_often_as_its_chance_and_never_twice():
    chance = chances(SQUARES, 10, 0.9)
    kept = jax.vmap(lambda key: keep(chance, 10, key))(jax.random.split(KEY, 4000))
    assert (np.diff(kept, axis=1) > 0).all()
    counts = np.bincount(np.asarray(kept).ravel(), minlength=80) / 4000
    np.testing.assert_allclose(counts, chance, atol=5 * 0.5 / 4000**0.5)


def losses(sampler, batches=400):
    model_condition = Condition(
        lambda u, x: u * jnp.exp(-(((x[0] - 0.5) / 0.005) ** 2)),
        Box([0], [1]),
        3.0,
        40,
        sampler,
    )
    found = LeastSquares(OrderedDict({"all": model_condition}), {"all": jnp.zeros((40, 1))}, None)

    @jax.jit
    def loss(key):
        return found.resample(key, jnp.array(2.0)).loss(jnp.array(2.0))

    return np.array([float(loss(key)) for key in jax.random.split(KEY, batches)])


def test_the_loss_is_the_same_on_average_and_varies_less():
    exact = 0.5 * 3.0 * 4.0 * 0.005 * (np.pi / 2) ** 0.5
    even, focused = losses(Uniform()), losses(Focused(Uniform(), 16))
    for found in (even, focused):
        assert abs(found.mean() - exact) < 4 * found.std() / len(found) ** 0.5
    assert focused.std() < 0.5 * even.std()


def test_points_crowd_where_the_residual_is():
    condition = Condition(
        lambda u, x: u * jnp.exp(-(((x[0] - 0.5) / 0.02) ** 2)),
        Box([0], [1]),
        points=40,
        sampler=Focused(Sobol(), 8, 0.5),
    )
    found = LeastSquares(OrderedDict({"all": condition}), {"all": jnp.zeros((40, 1))}, None)
    near = [
        float(jnp.mean(jnp.abs(found.resample(KEY, theta).points["all"] - 0.5) < 0.05))
        for theta in (None, jnp.array(1.0))
    ]
    assert near[0] < 0.2
    assert near[1] > 0.4


def test_chunks_and_padding_change_no_choice():
    condition = Condition(
        lambda u, x: u * x[0], Box([0], [1]), points=10, sampler=Focused(Uniform(), 4)
    )
    theta, points = jnp.array(1.0), {"all": jnp.zeros((10, 1))}
    whole, chunked = (
        LeastSquares(OrderedDict({"all": condition}), points, None, plan).resample(KEY, theta)
        for plan in (Plan(), Plan(points_at_once=7))
    )
    np.testing.assert_array_equal(whole.points["all"], chunked.points["all"])
    np.testing.assert_allclose(whole.residual(theta), chunked.residual(theta), rtol=1e-14)


def test_points_with_normals_and_measured_data_work_too():
    square = Box.unit(2)
    flux = Condition(
        lambda u, point: u * point[0][0] * point[1][0],
        square.boundary.with_normals,
        points=20,
        sampler=Focused(Uniform()),
    )
    data = Condition(
        lambda u, point: u - point[1],
        Data(np.zeros((3, 2)), np.ones(3)),
        sampler=Focused(Uniform()),
    )
    conditions = OrderedDict({"flux": flux, "data": data})
    blank = {"flux": (jnp.zeros((20, 2)), jnp.zeros((20, 2))), "data": data.sample(KEY)}
    found = LeastSquares(conditions, blank, None).resample(KEY, jnp.array(1.0))
    places, normals = found.points["flux"]
    assert places.shape == normals.shape == (20, 2)
    assert set(found.corrections) == {"flux"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Held(),), "candidates are drawn anew at each step"),
        ((Uniform(), 1), "candidates must be a whole number from 2"),
        ((Uniform(), 8, 1.0), "share must be above 0 and below 1"),
    ],
)
def test_wrong_settings_say_why(arguments, message):
    with pytest.raises(InputError, match=message):
        Focused(*arguments)
