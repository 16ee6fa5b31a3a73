"""What problems, coordinates and values are called, wherever they are shown."""

import jax
import jax.numpy as jnp
import pytest

import natpinn
from natpinn import Box, Condition, InputError, Problem, TimeSpace

KEY = jax.random.key(0)


def problem(box, names=None, **options):
    return Problem({"all": Condition(lambda u, x: u(x), box)}, names=names, **options)


def test_the_names_of_a_problem_are_those_of_its_domain_unless_it_has_its_own():
    box = Box([0, 0], [1, 1], names="r z")
    assert problem(box).coordinate_names == ("r", "z")
    assert problem(box, "x y").coordinate_names == ("x", "y")
    assert problem(TimeSpace(0, 1, Box([0], [1]))).coordinate_names == ("t", "x0")
    assert problem(box, "-> p q").coordinate_names == ("r", "z")
    assert problem(box, "x y -> p q").with_points({"all": 3}).names.values == ("p", "q")
    assert problem(box).names.of_values(1) == ("u",)
    assert problem(box).names.of_values(2) == ("u0", "u1")


def test_names_say_how_many_values_there_are():
    named = problem(Box.unit(2), "-> p q")
    model = named.default_model(KEY)
    assert model(jnp.zeros(2)).shape == (2,)
    named.check(model)
    with pytest.raises(InputError, match="has 1 value, and names has 2: p, q"):
        named.check(natpinn.MLP(2, (3,), key=KEY))
    with pytest.raises(InputError, match="outputs = 3, and names has 2 values: p, q"):
        problem(Box.unit(2), "-> p q", outputs=3)


@pytest.mark.parametrize(
    ("names", "message"),
    [("x y z", "2 different names"), ("x y -> u u", "2 different"), (3, "as in 'x y -> u v'")],
)
def test_names_that_cannot_be_are_explained(names, message):
    with pytest.raises(InputError, match=message):
        problem(Box.unit(2), names)


def test_pictures_use_the_names():
    named = problem(Box.unit(2), "r z -> p q")
    figure = natpinn.Solution(named.default_model(KEY), named, [], {}, {}).plot()
    assert [axis.get_xlabel() for axis in figure.axes[:2]] == ["r", "r"]
    assert [axis.get_ylabel() for axis in figure.axes[:2]] == ["z", "z"]
    assert [axis.get_title() for axis in figure.axes[:2]] == ["learned p", "learned q"]
    line = problem(Box([0], [1]), "t -> angle")
    figure = natpinn.Solution(line.default_model(KEY), line, [], {}, {}).plot()
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("t", "angle")


def test_a_problem_in_another_dimension_has_another_label():
    assert natpinn.problems.get("heat_4d").label == "heat_4d"
    assert natpinn.problems.get("heat_4d", dimension=3).label == "heat_3d"
    harmonic = natpinn.problems.get("poisson_100d_harmonic", dimension=6)
    assert harmonic.label == "poisson_6d_harmonic"
    assert problem(Box.unit(2), name="wave_2d").label == "wave_2d"
