"""The accurate solve has the digits of Householder's QR, where a kernel has lost them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import natpinn
from natpinn import Accurate, Box, Condition, Problem, Smaller
from natpinn.parallel.devices import make_mesh, place
from natpinn.parallel.plan import Plan
from natpinn.solvers import accurate

KEY = jax.random.key(0)
MESH = make_mesh("all")
PLANS = {
    "whole": Plan(),
    "sliced": Plan(working_bytes=3000),
    "streamed": Plan(held=False, points_at_once=7, working_bytes=3000),
}
SPREAD = {
    "spread": Plan(mesh=MESH),
    "spread and streamed": Plan(held=False, points_at_once=8, working_bytes=3000, mesh=MESH),
}


class Series(eqx.Module):
    """Σ θ_jk P_j(x) P_k(x) with some more: a Jacobian of which the singular values fall fast."""

    first: jax.Array
    second: jax.Array

    def __call__(self, x):
        powers = x[0] ** jnp.arange(self.first.shape[1])
        return (self.first @ powers) @ jnp.exp(x[0] * jnp.arange(4.0)) + self.second @ powers[:5]


def linear_problem(rows, columns):
    line = Box([0], [1])
    model = Series(jnp.zeros((4, (columns - 5) // 4)), jnp.zeros(5))
    problem = Problem(
        {
            "one": Condition(lambda u, x: u(x) - jnp.sin(9 * x[0]), line, points=rows - 10),
            "two": Condition(lambda u, x: 2 * u(x) - x[0], line, points=10, weight=3.0),
        }
    )
    return problem.objective(model, problem.sample(KEY))


def linearized(objective, theta, plan):
    arguments = place((objective.planned(plan), theta), plan)
    return eqx.filter_jit(lambda o, t: o.linearize(t))(*arguments)


@eqx.filter_jit
def solved(solver, linearization, b, damping):
    system, _ = solver.factorize(linearization, None, key=KEY)
    return system.solve(b, damping)


def by_householder(J, b, damping):
    """The same in dense form: through the smaller of two orthogonal factors."""
    n, p = J.shape
    if n <= p:
        Q, R = np.linalg.qr(np.vstack([J.T, np.sqrt(damping) * np.eye(n)]))
        return (Q @ np.linalg.solve(R.T, b))[:p]
    Q, R = np.linalg.qr(np.vstack([J, np.sqrt(damping) * np.eye(p)]))
    return np.linalg.solve(R, Q[:n].T @ b)


def dense(objective, theta):
    flat, unravel = ravel_pytree(theta)
    return np.asarray(jax.jit(jax.jacrev(lambda t: objective.residual(unravel(t))))(flat))


@pytest.mark.parametrize("shape", [(40, 65), (90, 45)], ids=["few rows", "many rows"])
@pytest.mark.parametrize("plan", [*PLANS, *(SPREAD if MESH else {})])
def test_it_equals_householder_however_it_is_planned(shape, plan):
    objective, theta = linear_problem(*shape)
    J = dense(objective, theta)
    plan = (PLANS | SPREAD)[plan]
    linearization = linearized(objective, theta, plan)
    b = np.random.default_rng(0).normal(size=len(J))
    padded = jnp.zeros(len(linearization.residual)).at[_places(objective, theta, plan)].set(b)
    for relative, allowed in ((1e-10, 1e-6), (1e-18, 1e-6), (1e-26, 1e-3)):
        damping = relative * np.sum(J**2)
        x, info = solved(Accurate(), linearization, padded, jnp.array(damping))
        wanted = by_householder(J, b, damping)
        error = np.asarray(ravel_pytree(jax.tree.map(np.asarray, x))[0]) - wanted
        assert np.linalg.norm(J @ error) < allowed * np.linalg.norm(b)
        assert np.linalg.norm(error) < 10 * allowed * np.linalg.norm(wanted)
        assert float(info.damping) == damping
        assert not info.is_recovered


def _places(objective, theta, plan):
    """Where the rows of a batch are between those that fill it up."""
    rows = objective.planned(plan).row_counts(theta)
    starts = np.cumsum([0, *rows.values()])
    counts = objective.row_counts(theta).values()
    return np.concatenate([np.arange(n) + s for n, s in zip(counts, starts, strict=False)])


def test_a_kernel_has_lost_these_digits_and_two_passes_some(monkeypatch):
    """The cases above tell solvers apart: each with less gives another result."""
    objective, theta = linear_problem(40, 65)
    J = dense(objective, theta)
    linearization = linearized(objective, theta, Plan())
    b = np.random.default_rng(0).normal(size=len(J))

    def error(solver, relative):
        damping = relative * np.sum(J**2)
        x, _ = solved(solver, linearization, jnp.array(b), jnp.array(damping))
        found = np.asarray(ravel_pytree(x)[0]) - by_householder(J, b, damping)
        return np.linalg.norm(J @ found) / np.linalg.norm(b)

    assert error(Smaller(), 1e-18) > 1e-2
    assert error(Accurate(), 1e-26) < 1e-3
    monkeypatch.setattr(accurate, "WORST_CONDITION", np.inf)
    jax.clear_caches()
    assert error(Accurate(), 1e-26) > 1e-3


def test_above_the_round_off_it_is_the_kernel(monkeypatch):
    objective, theta = linear_problem(40, 65)
    linearization = linearized(objective, theta, Plan())
    b = jnp.ones(40)
    damping = jnp.array(1e-8)
    one, two = (solved(s, linearization, b, damping)[0] for s in (Accurate(), Smaller()))
    np.testing.assert_array_equal(ravel_pytree(one)[0], ravel_pytree(two)[0])


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf])
def test_what_is_not_finite_has_no_solution(value):
    objective, theta = linear_problem(40, 65)
    linearization = linearized(objective, theta, Plan())
    x, _ = solved(Accurate(), linearization, jnp.ones(40).at[3].set(value), jnp.array(1e-25))
    assert not bool(jnp.isfinite(ravel_pytree(x)[0]).any())


def test_points_that_repeat_need_no_recovery():
    """Equal rows make a kernel singular whatever its round-off."""

    def at_one_point(u, x):
        return u(0.3 * jnp.ones(2)) - 1

    square = Box.unit(2)
    problem = Problem({"one": Condition(at_one_point, square, points=30)}, widths=(8,))
    optimizer = natpinn.engd_w(1e-22, solver=Accurate())
    solution = natpinn.solve(problem, optimizer=optimizer, steps=10, progress=False)
    assert solution.summary["status"] == "finished"
    assert solution.summary["rejected_steps"] == 0
    assert solution.summary["final_validation_loss"] < 1e-20


def test_where_no_factor_is_found_the_damping_is_raised(monkeypatch):
    """As with a kernel whose round-off is far larger than that of a product of two matrices."""
    objective, theta = linear_problem(40, 65)
    linearization = linearized(objective, theta, Plan())
    nothing = jnp.full((40, 40), jnp.nan)
    monkeypatch.setattr(accurate, "first_factor", lambda matrix: nothing)
    jax.clear_caches()
    x, info = solved(Accurate(), linearization, jnp.ones(40), jnp.array(1e-25))
    assert info.is_recovered
    assert float(info.damping) > 1e-17
    assert bool(jnp.isfinite(ravel_pytree(x)[0]).all())


@pytest.mark.slow
def test_poisson_goes_below_the_round_off_of_its_kernel():
    """With a kernel's Cholesky factor it ends at 2e-9."""
    solution = natpinn.solve("poisson_2d", steps=600, progress=False)
    assert solution.summary["status"] == "finished"
    assert solution.summary["relative_l2"] < 1e-12
