"""Points lie where they should, are spread as they should, and bring their normals."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natpinn
from natpinn import Box, Condition, Data, Held, InputError, Sobol, TimeSpace, Uniform, Union

KEY = jax.random.key(0)
BOX = Box([0.0, -1.0], [2.0, 3.0])
SLAB = TimeSpace(0.5, 1.5, BOX)


@pytest.mark.parametrize("sampler", [Uniform(), Sobol()], ids=["uniform", "sobol"])
@pytest.mark.parametrize(
    "domain", [BOX, SLAB, BOX.boundary, SLAB.boundary, SLAB.initial, SLAB.final]
)
def test_points_lie_in_their_domain(domain, sampler):
    points = jax.jit(lambda key: domain.sample(key, 257, sampler))(KEY)
    lower, upper = domain.bounds
    assert points.shape == (257, domain.dimension)
    assert points.dtype == jnp.float64
    assert bool(jnp.all((points >= lower) & (points <= upper)))


def test_boundary_points_are_on_faces_in_proportion_to_area():
    points, normals = BOX.boundary.with_normals.sample(KEY, 20_000)
    on_face = jnp.isclose(points, BOX.lower) | jnp.isclose(points, BOX.upper)
    assert bool(jnp.all(on_face.sum(1) == 1))
    short_sides = float(on_face[:, 1].mean())  # where coordinate 1 is at an end: length 2 of 6
    assert abs(short_sides - 2 / 6) < 0.02
    outward = points + 1e-3 * normals
    assert bool(jnp.all(jnp.any((outward < BOX.lower) | (outward > BOX.upper), axis=1)))
    np.testing.assert_allclose(jnp.linalg.norm(normals, axis=1), 1)


def test_named_faces():
    points = BOX.faces("x0+").sample(KEY, 50)
    assert bool(jnp.all(points[:, 0] == 2.0))
    lateral, normals = SLAB.faces("x1-").with_normals.sample(KEY, 50)
    assert bool(jnp.all(lateral[:, 2] == -1.0))
    assert bool(jnp.all(normals == jnp.array([0.0, 0.0, -1.0])))
    with pytest.raises(InputError, match="did you mean 'x0-'"):
        BOX.faces("x0")


def test_slices_and_unions():
    assert bool(jnp.all(SLAB.initial.sample(KEY, 20)[:, 0] == 0.5))
    assert bool(jnp.all(SLAB.final.sample(KEY, 20)[:, 0] == 1.5))
    union = Box([0.0], [1.0]) | Box([5.0], [8.0])
    points = union.sample(KEY, 8000)[:, 0]
    assert abs(float((points > 1).mean()) - 0.75) < 0.02
    assert bool(jnp.all((points <= 1) | (points >= 5)))
    with pytest.raises(InputError, match="one dimension"):
        Union(BOX, Box([0.0], [1.0]))


def test_a_union_covers_what_its_members_do():
    corner = Box([0.0, 0.0], [1.0, 0.5]) | Box([0.0, 0.5], [0.5, 1.0])
    places = jnp.array([[0.25, 0.25], [0.25, 0.75], [0.75, 0.25], [0.75, 0.75], [2.0, 0.0]])
    inside = [True, True, True, False, False]
    assert jax.vmap(corner.covers)(places).tolist() == inside
    in_time = TimeSpace(0.0, 1.0, corner)
    timed = jnp.concatenate([jnp.full((5, 1), 0.5), places], 1)
    assert jax.vmap(in_time.covers)(timed).tolist() == inside
    assert not jax.vmap(in_time.covers)(timed.at[:, 0].set(2.0)).any()


def test_data_are_used_whole_or_in_subsets():
    points, values = jnp.arange(10.0)[:, None], jnp.arange(10.0)
    data = Data(points, values)
    assert Condition(lambda u, p: u(p[0]) - p[1], data).points == 10
    np.testing.assert_array_equal(data.sample(KEY, 10)[1], values)
    some = data.sample(KEY, 4)
    np.testing.assert_array_equal(some[0][:, 0], some[1])
    assert len(set(some[1].tolist())) == 4


def test_sobol_is_more_even_than_uniform_and_unbiased():
    def error(sampler, key):  # of the integral of a smooth function
        points = sampler.unit(key, 256, 4)
        return jnp.mean(jnp.prod(1 + jnp.sin(points - 0.5), axis=1)) - 1

    keys = jax.random.split(KEY, 64)
    uniform, sobol = (
        np.asarray(jax.vmap(lambda k, s=s: error(s, k))(keys)) for s in (Uniform(), Sobol())
    )
    assert sobol.std() < uniform.std() / 20
    assert abs(sobol.mean()) < 4 * sobol.std() / 8
    assert not np.array_equal(Sobol().unit(keys[0], 8, 2), Sobol().unit(keys[1], 8, 2))


def test_held_points_stay():
    assert (
        Condition(lambda u, x: u(x), BOX, points=cast(Any, np.int64(7)), sampler=Held()).points == 7
    )
    sampler = Held(Sobol())
    a, b = (BOX.sample(key, 16, sampler) for key in jax.random.split(KEY))
    np.testing.assert_array_equal(a, b)


def test_published_scales_are_norms():
    """The constants 1.34, 12.59 and 33.47 are the L2 norms of the solutions, rounded."""
    for name, dimension in (
        ("poisson_10d", 10),
        ("poisson_100d_harmonic", 100),
        ("poisson_100d", 100),
    ):
        published = natpinn.problems.get(name).solution
        assert published is not None
        points = Box.unit(dimension).sample(KEY, 20_000)
        norm = float(jnp.sqrt(jnp.mean(jax.vmap(published)(points) ** 2)))
        assert abs(norm - 1) < 0.01


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Box([0.0], [0.0]), "lower < upper"),
        (lambda: Box([0.0, 1.0], [1.0]), "shapes"),
        (lambda: Box(np.zeros(2, np.float32), np.ones(2, np.float32)), "float32"),
        (lambda: Box.unit(0), "dimension must be a whole number from 1, got 0"),
        (lambda: Box.unit(cast(Any, 2.5)), "got 2.5"),
        (lambda: BOX.faces(cast(Any, 0)), "unknown face '0'"),
        (lambda: TimeSpace(0, 1, BOX.boundary.with_normals), r"\.boundary\.with_normals"),
        (lambda: BOX.boundary | BOX.boundary.with_normals, "no union"),
        (lambda: Condition(lambda u, x: u(x), BOX, points=True), "got True"),
        (lambda: Box([0.0], [np.inf]), "finite"),
        (lambda: Box(cast(Any, ["a"]), cast(Any, ["b"])), "numbers"),
        (lambda: TimeSpace(0.0, np.inf, BOX), "finite"),
        (lambda: TimeSpace(0.0, 1.0, cast(Any, 3)), "domain"),
        (lambda: Condition(lambda u, x: u(x), BOX, sampler=cast(Any, Sobol)), "object"),
        (lambda: Condition(lambda u, x: u(x), BOX, points=cast(Any, "10")), "whole number"),
        (lambda: TimeSpace(1.0, 0.0, BOX), "start < end"),
        (lambda: TimeSpace(0.0, 1.0, BOX).faces("t-"), r"take \.initial"),
        (lambda: Data(np.zeros(3), np.zeros(3)), r"points\[:, None\]"),
        (lambda: Data(np.zeros((3, 1)), np.zeros(2)), "one value per point"),
        (lambda: Data(np.zeros((3, 1), np.float32), np.zeros(3)), "float32"),
        (lambda: Data(np.full((3, 1), np.nan), np.zeros(3)), "NaN"),
        (lambda: Condition(lambda u, x: u(x), BOX, points=0), "whole number from 1, got 0"),
        (lambda: Condition(lambda u, x: u(x), BOX, weight=-1.0), "positive"),
        (
            lambda: Condition(lambda u, p: u(p[0]), Data(np.zeros((3, 1)), np.zeros(3)), points=4),
            "3",
        ),
        (lambda: Condition(cast(Any, 3), BOX), "function"),
    ],
)
def test_bad_domains_and_conditions_are_explained(build, message):
    with pytest.raises(InputError, match=message):
        build()


def test_coordinates_have_names():
    named = Box([0, 0], [2, 1], names="x y")
    assert named.face_names == ("x-", "x+", "y-", "y+")
    assert bool(jnp.all(named.faces("y+").sample(KEY, 9)[:, 1] == 1.0))
    slab = TimeSpace(0.0, 1.0, named)
    parts = (slab, slab.initial, slab.boundary, slab.faces("x-"), slab.boundary.with_normals)
    assert {part.names for part in parts} == {("t", "x", "y")}
    union = named | Box([2, 0], [3, 1])
    assert (union.names, named.boundary.names) == (("x", "y"), ("x", "y"))
    assert BOX.names == ("x0", "x1")
    with pytest.raises(InputError, match="did you mean 'x\\+'"):
        named.faces("x0+")
    for names in ("x", "x x", "x y-", ("x", 1)):
        with pytest.raises(InputError, match="2 different names"):
            Box([0, 0], [2, 1], names=cast(Any, names))
