"""natpinn's own network: what it does with a point first, and between its layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from natpinn.domains.box import Box
from natpinn.equations.condition import Condition
from natpinn.errors import InputError
from natpinn.models.embeddings import Periodic, Scaled
from natpinn.models.mlp import tanh_sin
from natpinn.problems.problem import Problem

KEY = jax.random.key(0)
STRIP = Box([0.0, -1.0], [1.0, 1.0])


def problem(**options):
    return Problem({"all": Condition(lambda u, x: u(x), STRIP)}, **options)


def test_an_embedding_takes_the_place_of_the_scale():
    ring = Periodic((0, 2.0))
    net = problem(embedding=ring).default_model(KEY)
    assert net.embedding == ring
    one, other = (net(jnp.array([0.3, x])) for x in (-0.9, 1.1))
    np.testing.assert_allclose(one, other, rtol=1e-13)
    assert isinstance(problem().default_model(KEY).embedding, Scaled)
    assert problem(scaled=False).default_model(KEY).embedding is None
    assert problem(embedding=ring).with_points({"all": 5}).embedding == ring


def test_an_embedding_and_a_scale_are_too_much():
    with pytest.raises(InputError, match=r"has the embedding .* already: leave scaled at False"):
        problem(embedding=Periodic((0, 2.0))).default_model(KEY, scaled=True)
    with pytest.raises(InputError, match="an embedding is a function of a point"):
        problem(embedding=2.0)


def test_a_net_without_widths_of_its_problem_has_tanh_and_sin():
    assert problem().default_model(KEY).activation is tanh_sin
    assert problem(widths=(8,)).default_model(KEY).activation is jnp.tanh
    assert problem(widths=(8,)).default_model(KEY, activation=jnp.sin).activation is jnp.sin


def test_half_of_a_layer_goes_through_tanh():
    x = jnp.linspace(-2, 2, 5)
    np.testing.assert_array_equal(tanh_sin(x), [*jnp.tanh(x[:2]), *jnp.sin(x[2:])])


def test_how_many_values_an_unknown_has():
    assert problem().values == 1
    assert problem(outputs=3).values == 3
    assert problem(names="t x -> u v").values == 2
    assert problem(solution=lambda x: jnp.stack([x[0], x[1], x[0]])).values == 3
