"""Operators against dense derivatives, on an MLP and on a model that is none."""

from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natpinn
from natpinn import (
    divergence,
    gradient,
    jacobian,
    laplacian,
    partial,
    value_gradient_laplacian,
    weighted_laplacian,
    weighted_value_gradient_laplacian,
)

D = 3
POINT = jnp.array([0.3, -0.4, 0.7])
SIGMA = jax.random.normal(jax.random.key(1), (D, 2))
DRIFT = jax.random.normal(jax.random.key(2), (D,))


class Attention(eqx.Module):
    """No MLP: coordinates attend to each other, with a norm and a product at the end."""

    embed: jax.Array
    query: jax.Array

    def __call__(self, x):
        tokens = jnp.sin(x[:, None] * self.embed[None, :])
        weights = jax.nn.softmax(tokens @ self.query @ tokens.T, axis=-1)
        return jnp.sum((weights @ tokens) ** 2) + jnp.sqrt(1 + x @ x) * jnp.cos(x[0] * x[1])


def _looping(x):
    return jax.lax.fori_loop(0, 3, lambda i, y: jnp.sin(y) * (1 + y), x).sum()


MODELS = {
    "mlp": natpinn.MLP(D, (7, 6), key=jax.random.key(0)),
    "vector mlp": natpinn.MLP(D, (7, 6), 2, key=jax.random.key(0)),
    "fourier mlp": natpinn.MLP(
        D,
        (6,),
        key=jax.random.key(3),
        embedding=natpinn.FourierFeatures(D, 4, key=jax.random.key(4)),
    ),
    "attention": Attention(
        jax.random.normal(jax.random.key(5), (4,)), jax.random.normal(jax.random.key(6), (4, 4))
    ),
    "loop": _looping,
    "constant": lambda x: jnp.asarray(2.5),
    "linear": lambda x: x @ jnp.array([1.0, 2.0, 3.0]),
}


def close(found, wanted):
    scale = max(1.0, float(jnp.abs(wanted).max()))
    np.testing.assert_allclose(found, wanted, atol=1e-12 * scale)


@pytest.mark.parametrize("name", MODELS)
def test_operators_equal_dense_derivatives(name):
    u = MODELS[name]
    value, slope, hessian = jax.jit(lambda x: (u(x), jax.jacfwd(u)(x), jax.hessian(u)(x)))(POINT)
    trace = jnp.trace(hessian, axis1=-2, axis2=-1)
    weighted = jnp.einsum("...ij,ik,jk->...", hessian, SIGMA, SIGMA) + slope @ DRIFT
    table = {
        gradient(u): slope,
        laplacian(u): trace,
        laplacian(u, [0, 2]): hessian[..., 0, 0] + hessian[..., 2, 2],
        partial(u, 1): slope[..., 1],
        partial(u, 0, 2): hessian[..., 0, 2],
        weighted_laplacian(u, SIGMA, DRIFT): weighted,
        value_gradient_laplacian(u): (value, slope, trace),
        weighted_value_gradient_laplacian(u, lambda x: SIGMA, lambda x: DRIFT): (
            value,
            slope @ SIGMA,
            weighted,
        ),
    }
    found = jax.jit(lambda x: [operator(x) for operator in table])(POINT)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(list(table.values())), strict=True):
        close(a, b)


@pytest.mark.parametrize("name", ["mlp", "attention"])
def test_higher_orders_equal_nested_hessians(name):
    u = MODELS[name]
    third, fourth = jax.jit(lambda x: (jax.jacfwd(jax.hessian(u))(x), _fourth(u)(x)))(POINT)
    table = {
        partial(u, 0, 1, 2): third[0, 1, 2],
        partial(u, 1, 1, 1, 1): fourth[1, 1, 1, 1],
        laplacian(laplacian(u)): jnp.einsum("iijj", fourth),
        gradient(laplacian(u)): jnp.einsum("iij->j", third),
    }
    found = jax.jit(lambda x: [operator(x) for operator in table])(POINT)
    for a, b in zip(found, table.values(), strict=True):
        close(a, b)


def _fourth(u):
    return jax.jacfwd(jax.jacfwd(jax.hessian(u)))


def test_vector_fields():
    def field(x):
        return jnp.array([x[0] * x[1], jnp.sin(x[1]), x[2] ** 2 * x[0]])

    close(jacobian(field)(POINT), jax.jacfwd(field)(POINT))
    close(divergence(field)(POINT), POINT[1] + jnp.cos(POINT[1]) + 2 * POINT[2] * POINT[0])
    with pytest.raises(natpinn.InputError, match=r"shape \(2,\)"):
        divergence(MODELS["vector mlp"])(POINT)


def test_operators_work_under_vmap_grad_and_jit():
    model = MODELS["mlp"]
    points = jax.random.normal(jax.random.key(7), (5, D))

    def mean_square(operator, model):
        return jnp.mean(jax.vmap(operator(model))(points) ** 2)

    def by_hessian(u):
        return lambda x: jnp.trace(jax.hessian(u)(x))

    def by_folx(u):
        return lambda x: weighted_laplacian(u, jnp.eye(D), 0 * DRIFT)(x)

    wanted = eqx.filter_grad(lambda m: mean_square(by_hessian, m))(model)
    for operator in (laplacian, by_folx):
        found = eqx.filter_jit(eqx.filter_grad(lambda m, op=operator: mean_square(op, m)))(model)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            close(a, b)


def test_they_act_at_one_point_however_it_is_written():
    def u(x):
        return x[0] ** 2 * x[1]

    for operator, wanted in ((laplacian(u), 4.0), (partial(u, 0), 4.0), (jacobian(u), [4.0, 1.0])):
        for point in ([1, 2], (1.0, 2.0), np.array([1, 2]), np.array([1, 2], np.float32)):
            found = operator(cast("jax.Array", point))
            assert found.dtype == jnp.float64
            np.testing.assert_allclose(found, wanted)
        with pytest.raises(natpinn.InputError, match=r"jax\.vmap"):
            operator(jnp.ones((4, 2)))


def test_wrong_coordinates_and_coefficients_are_named():
    u = MODELS["mlp"]
    with pytest.raises(natpinn.InputError, match="coordinate 3"):
        laplacian(u, [3])(POINT)
    with pytest.raises(natpinn.InputError, match="coordinate 5"):
        partial(u, 5)(POINT)
    with pytest.raises(natpinn.InputError, match="at least one coordinate"):
        partial(u)
    for wrong in ([], 0):
        with pytest.raises(natpinn.InputError, match="coordinates are a list"):
            laplacian(u, cast(Any, wrong))(POINT)
    with pytest.raises(natpinn.InputError, match=r"\(3, k\)"):
        weighted_laplacian(u, jnp.eye(2))(POINT)
