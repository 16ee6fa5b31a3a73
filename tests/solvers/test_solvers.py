"""Every solver against dense least squares; both forms of the natural gradient agree."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden import Golden
from jax.flatten_util import ravel_pytree

import natpinn
from natpinn import (
    Accurate,
    Box,
    Condition,
    Dual,
    Grid,
    InputError,
    Primal,
    Problem,
    Smaller,
    engd,
    engd_w,
    partial,
    spring,
)

KEY = jax.random.key(0)
SOLVERS = {"dual": Dual(), "primal": Primal(), "smaller": Smaller()}


class Unknowns(eqx.Module):
    """Two fields and a coefficient to be found with them."""

    net: natpinn.MLP
    coefficient: jax.Array

    def __call__(self, x):
        return self.net(x)


def _system():
    """A vector-valued residual, an extra unknown, a weight: everything at once."""

    def coupled(u, x):
        return jnp.stack([partial(u, 0)(x)[0] - u.coefficient * u(x)[1], u(x)[0] ** 2 - x[0]])

    square = Box.unit(2)
    problem = Problem(
        {
            "equation": Condition(coupled, square, points=7),
            "boundary": Condition(lambda u, x: u(x)[0], square.boundary, weight=3.0, points=5),
        }
    )
    net = natpinn.MLP(2, (4,), 2, key=jax.random.key(1))
    return problem.objective(Unknowns(net, jnp.array(0.7)), problem.sample(KEY))


OBJECTIVES = {
    "poisson": lambda: (Golden("poisson_5d").objective, Golden("poisson_5d").theta),
    "system": _system,
}


@pytest.fixture(scope="module", params=OBJECTIVES)
def dense(request):
    """An objective with its residual and Jacobian in dense form, straight from its definition."""
    objective, theta = OBJECTIVES[request.param]()
    flat, unravel = ravel_pytree(theta)
    residual = objective.residual(theta)
    jacobian = jax.jit(jax.jacrev(lambda t: objective.residual(unravel(t))))(flat)
    linearization = eqx.filter_jit(lambda o, t: o.linearize(t))(objective, theta)
    return objective, theta, residual, jacobian, linearization


def relative(found, wanted):
    return float(jnp.linalg.norm(found - wanted) / jnp.linalg.norm(wanted))


def test_linearization_equals_the_dense_jacobian(dense):
    _, theta, residual, J, linearization = dense
    n = len(J)
    v, unravel = ravel_pytree(theta)
    y = jax.random.normal(KEY, (n,))
    Y = jax.random.normal(KEY, (n, 3))
    assert relative(linearization.residual, residual) < 1e-14
    assert relative(linearization.jvp(unravel(v)), J @ v) < 1e-13
    assert relative(ravel_pytree(linearization.vjp(y))[0], J.T @ y) < 1e-13
    assert relative(linearization.kernel(), J @ J.T) < 1e-13
    assert relative(linearization.kernel_mm(Y), J @ (J.T @ Y)) < 1e-13
    assert relative(linearization.gramian(), J.T @ J) < 1e-13


def test_loss_sums_weighted_means_of_squares(dense):
    objective, theta, residual, *_ = dense
    np.testing.assert_allclose(objective.loss(theta), 0.5 * jnp.sum(residual**2), rtol=1e-14)
    model = eqx.combine(theta, objective.frozen)
    total = 0.0
    for name, condition in objective.conditions.items():
        rows = jax.vmap(lambda x, c=condition: jnp.atleast_1d(c.residual(model, x)))(
            objective.points[name]
        )
        total += float(condition.weight) / 2 * float(jnp.sum(rows**2)) / len(rows)
    np.testing.assert_allclose(objective.loss(theta), total, rtol=1e-13)


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("damping", [1e-3, 1.0])
def test_solvers_equal_damped_least_squares(dense, name, damping):
    _, theta, residual, J, linearization = dense
    p = J.shape[1]
    stacked = jnp.concatenate([J, damping**0.5 * jnp.eye(p)])
    wanted = jnp.linalg.lstsq(stacked, jnp.concatenate([residual, jnp.zeros(p)]))[0]
    solver = SOLVERS[name]
    system, _ = solver.factorize(linearization, solver.init(theta), key=KEY)
    found, info = system.solve(residual, jnp.array(damping))
    assert relative(ravel_pytree(found)[0], wanted) < 1e-9
    assert float(info.damping) == damping

    np.testing.assert_allclose(system.trace(), jnp.sum(J**2), rtol=1e-10)


@pytest.mark.parametrize("at_identity", [True, False])
def test_primal_averages_its_gramian(dense, at_identity):
    _, theta, residual, J, linearization = dense
    solver = Primal(average=0.75, start_at_identity=at_identity)
    state = solver.init(theta)
    start = jnp.eye(J.shape[1]) if at_identity else jnp.zeros((J.shape[1],) * 2)
    _, state = solver.factorize(linearization, state, key=KEY)
    system, state = solver.factorize(linearization, state, key=KEY)
    for _ in range(2):
        start = 0.75 * start + 0.25 * J.T @ J
    found, _ = system.solve(residual, jnp.array(0.1))
    wanted = jnp.linalg.solve(start + 0.1 * jnp.eye(len(start)), J.T @ residual)
    assert relative(ravel_pytree(found)[0], wanted) < 1e-10


def take_steps(optimizer, objective, theta, steps):
    step = eqx.filter_jit(lambda t, s: optimizer.step(objective, t, s, key=KEY))
    theta, state, info = step(theta, optimizer.init(theta))
    for _ in range(steps - 1):
        theta, state, info = step(theta, state)
    return ravel_pytree(theta)[0], info


@pytest.mark.parametrize("rate", [0.1, None], ids=["fixed", "grid"])
def test_engd_and_engd_w_take_the_same_steps(dense, rate):
    objective, theta, *_ = dense
    one, _ = take_steps(engd(0.1, rate), objective, theta, 5)
    other, _ = take_steps(engd_w(0.1, rate), objective, theta, 5)
    assert relative(one, other) < 1e-8


def test_engd_takes_another_solver_in_place_of_its_average(dense):
    objective, theta, *_ = dense
    one, _ = take_steps(engd(1e-18, 0.1, solver=Accurate()), objective, theta, 2)
    other, _ = take_steps(engd_w(1e-18, 0.1, solver=Accurate()), objective, theta, 2)
    np.testing.assert_array_equal(one, other)
    with pytest.raises(InputError, match="leave one of them out"):
        engd(average=0.5, solver=Accurate())


def test_spring_without_momentum_is_engd_w(dense):
    objective, theta, *_ = dense
    one, _ = take_steps(spring(1e-3, 0.0, 0.1, norm_cap=None), objective, theta, 3)
    other, _ = take_steps(engd_w(1e-3, 0.1), objective, theta, 3)
    np.testing.assert_array_equal(one, other)


def test_the_norm_cap_bounds_a_step(dense):
    objective, theta, *_ = dense
    before = ravel_pytree(theta)[0]
    after, info = take_steps(spring(1e-6, 0.0, 1.0, norm_cap=1e-4), objective, theta, 1)
    np.testing.assert_allclose(jnp.linalg.norm(after - before), 1e-2, rtol=1e-6)
    np.testing.assert_allclose(info.details["update_norm"], 1e-2, rtol=1e-6)


def test_grid_takes_the_best_step_and_none_that_does_not_help(dense):
    objective, theta, *_ = dense
    direction = eqx.filter_jit(lambda t: jax.grad(objective.loss)(t))(theta)

    @eqx.filter_jit
    def loss_after(size, direction):
        return objective.loss(jax.tree.map(lambda t, d: t - size * d, theta, direction))

    @eqx.filter_jit
    def chosen(direction):
        return Grid().step_size(objective, theta, direction, objective.loss(theta), jnp.array(0))

    losses = {2.0**e: float(loss_after(2.0**e, direction)) for e in range(-30, 1)}
    assert float(chosen(direction)) == min(losses, key=lambda s: losses[s])
    assert float(chosen(jax.tree.map(jnp.negative, direction))) == 0.0
    assert float(chosen(jax.tree.map(lambda leaf: leaf * jnp.nan, direction))) == 0.0
