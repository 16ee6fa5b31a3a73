"""Every way to assemble a kernel gives the kernel of the dense Jacobian."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax.flatten_util import ravel_pytree

import natpinn
from natpinn import (
    Box,
    Condition,
    Linearization,
    Problem,
    engd_w,
    laplacian,
    value_gradient_laplacian,
)
from natpinn.least_squares import factoring, kernel
from natpinn.least_squares.blocks import Block, Factored
from natpinn.least_squares.factoring import factored
from natpinn.parallel.devices import make_mesh
from natpinn.parallel.plan import Plan

KEY = jax.random.key(0)
WIDE = (90, 70)  # wide enough that factors are kept: 90 · 70 is more than a small leaf


class Convolution(eqx.Module):
    """A model with a layer that is not dense, between two that are."""

    first: eqx.nn.Linear
    middle: eqx.nn.Conv1d
    last: eqx.nn.Linear

    def __init__(self, inputs, key):
        keys = jax.random.split(key, 3)
        self.first = eqx.nn.Linear(inputs, 400, key=keys[0])
        self.middle = eqx.nn.Conv1d(4, 3, 5, key=keys[1])
        self.last = eqx.nn.Linear(3 * 96, "scalar", key=keys[2])

    def __call__(self, x):
        return self.last(jnp.tanh(self.middle(jnp.tanh(self.first(x)).reshape(4, 100))).ravel())


class Recurrent(eqx.Module):
    """One weight used several times: written out, or in a loop that no one can look into."""

    enter: eqx.nn.Linear
    weight: jax.Array
    in_loop: bool = eqx.field(static=True)

    def __init__(self, in_loop):
        keys = jax.random.split(KEY)
        self.enter = eqx.nn.Linear(3, 40, key=keys[0])
        self.weight = jax.random.normal(keys[1], (40, 40)) / 6
        self.in_loop = in_loop

    def __call__(self, x):
        y = jnp.tanh(self.enter(x))
        if self.in_loop:
            return jax.lax.fori_loop(0, 3, lambda _, y: jnp.tanh(self.weight @ y), y).sum()
        return jnp.tanh(self.weight @ jnp.tanh(self.weight @ y)).sum()


def _catalogue(name, n=9):
    problem = natpinn.problems.get(name)
    return problem.with_points(dict.fromkeys(problem.conditions, n)), None


def _vector_residual():
    def rows(flow, x):
        values, slopes, second = value_gradient_laplacian(flow)(x)
        return jnp.stack([values[0] * slopes[0, 0] - second[1], slopes[0, 1] + slopes[1, 0]])

    square = Box.unit(2)
    problem = Problem(
        {
            "flow": Condition(rows, square, points=8),
            "wall": Condition(lambda flow, x: flow(x), square.boundary, weight=2.0, points=5),
        }
    )
    return problem, natpinn.MLP(2, WIDE, 2, key=KEY)


def _three_dimensional():
    cube = Box.unit(3)
    return Problem(
        {
            "interior": Condition(lambda u, x: laplacian(u)(x) - u(x) ** 2, cube, points=8),
            "boundary": Condition(lambda u, x: u(x), cube.boundary, points=6),
        }
    )


PROBLEMS = ("poisson_5d", "poisson_10d", "poisson_100d", "heat_4d", "log_fokker_planck_9d")
CASES = {
    **{name: lambda name=name: _catalogue(name) for name in PROBLEMS},
    "vector residual": _vector_residual,
    "convolution": lambda: (_three_dimensional(), Convolution(3, KEY)),
    "shared weight": lambda: (_three_dimensional(), Recurrent(in_loop=False)),
    "loop": lambda: (_three_dimensional(), Recurrent(in_loop=True)),
}


def is_factored(block):
    return isinstance(block, Factored)


# What is turned to make every row pair and leaf take one way.
STRATEGIES = {
    "as chosen": {},
    "structured": {(Block, "is_cheaper_structured"): lambda *pair: all(map(is_factored, pair))},
    "explicit": {(Block, "is_cheaper_structured"): lambda left, right: False},
    "tiles": {(kernel, "SMALLEST_TILE"): 2},
    "syrk": {(kernel, "SYRK_ROWS"): 1},
}
MESH = make_mesh("all")
PLANS = {
    "streamed": Plan(held=False, points_at_once=4, working_bytes=20_000),
    "sharded": Plan(mesh=MESH),
}
MIXED_PLANS = {
    "in chunks": Plan(points_at_once=4, working_bytes=20_000),
    "sharded in chunks": Plan(points_at_once=8, working_bytes=20_000, mesh=MESH),
    "sharded and streamed": Plan(held=False, points_at_once=8, working_bytes=20_000, mesh=MESH),
}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    return make_case(request.param)


@cache
def make_case(name):
    """A least-squares problem, and its dense residual and Jacobian by their definition."""
    problem, model = CASES[name]()
    model = problem.default_model(KEY, WIDE) if model is None else model
    objective, theta = problem.objective(model, problem.sample(KEY))
    J = jax.jit(jax.jacfwd(lambda y: _pull_back(objective, theta, y)))(objective.residual(theta)).T
    return objective, theta, objective.residual(theta), J


def _pull_back(objective, theta, y):
    """Jᵀ y of the stacked residual, flat: its Jacobian is Jᵀ, with no factors anywhere."""
    return ravel_pytree(jax.vjp(objective.residual, theta)[1](y)[0])[0]


def relative(found, wanted):
    return float(jnp.linalg.norm(found - wanted) / jnp.linalg.norm(wanted))


@pytest.fixture(scope="module")
def linearized(case):
    objective, theta, residual, J = case
    return _linearize(objective, theta), residual, J


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_gives_the_dense_kernel_and_step(linearized, strategy, monkeypatch):
    for (owner, name), value in STRATEGIES[strategy].items():
        monkeypatch.setattr(owner, name, value)
    linearization, residual, J = linearized
    if strategy == "syrk":
        as_on_a_gpu = linearization.objective.planned(Plan(backend="gpu"))
        linearization = eqx.tree_at(lambda near: near.objective, linearization, as_on_a_gpu)
    found = jax.jit(lambda arrays: _with(linearization, arrays).kernel())(_arrays(linearization))
    assert relative(found, J @ J.T) < 1e-12

    y = jnp.linalg.solve(found + 1e-3 * jnp.eye(len(J)), residual)
    assert relative(ravel_pytree(linearization.vjp(y))[0], _step(J, residual)) < 1e-9


@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_gives_the_dense_kernel_and_step(case, plan):
    """Rows of padding are zero, and so is what is solved for them."""
    check_plan(PLANS[plan], *case)


@pytest.mark.parametrize("plan", MIXED_PLANS)
def test_plans_can_be_mixed(plan):
    check_plan(MIXED_PLANS[plan], *make_case("vector residual"))


def check_plan(plan, objective, theta, residual, J):
    objective = objective.planned(plan)

    @eqx.filter_jit
    def step(objective, theta):
        linearization = objective.linearize(theta)
        K = linearization.kernel()
        y = jnp.linalg.solve(K + 1e-3 * jnp.eye(len(K)), linearization.residual)
        return linearization.residual, K, ravel_pytree(linearization.vjp(y))[0]

    found_residual, K, found_step = step(objective, theta)
    real = _real_rows(objective, theta)
    assert relative(found_residual[real], residual) < 1e-13
    assert relative(K[real][:, real], J @ J.T) < 1e-12
    assert not K[~real].any()
    assert relative(found_step, _step(J, residual)) < 1e-9


def _real_rows(objective, theta):
    """Which rows are not padding."""
    padded, real = objective.row_counts(theta), objective.planned(Plan()).row_counts(theta)
    return jnp.concatenate([jnp.arange(padded[name]) < real[name] for name in padded])


def _step(J, residual):
    return J.T @ jnp.linalg.solve(J @ J.T + 1e-3 * jnp.eye(len(J)), residual)


def test_products_with_vectors_equal_dense_ones(linearized):
    linearization, residual, J = linearized
    flat, unravel = ravel_pytree(linearization.theta)
    y = jax.random.normal(KEY, (len(J),))
    Y = jax.random.normal(KEY, (len(J), 3))
    assert relative(linearization.residual, residual) < 1e-13
    assert relative(linearization.jvp(unravel(flat)), J @ flat) < 1e-12
    assert relative(ravel_pytree(linearization.vjp(y))[0], J.T @ y) < 1e-12
    assert relative(linearization.kernel_mm(Y), J @ (J.T @ Y)) < 1e-12


@pytest.mark.parametrize("plan", ["streamed", "sharded"])
def test_products_are_the_same_under_every_plan(plan):
    sizes = {"interior": 7, "boundary": 6}  # of 7 points in chunks of 4 the last chunk repeats one
    problem = _three_dimensional().with_points(sizes)
    objective, theta = problem.objective(problem.default_model(KEY, (40, 30)), problem.sample(KEY))

    @eqx.filter_jit
    def products(objective, theta, Y):
        linearization = objective.linearize(theta)
        mixed = linearization.kernel_mm(Y), linearization.gramian(), linearization.kernel_trace()
        return linearization.jvp(theta), *mixed

    planned = objective.planned(PLANS[plan])
    real = _real_rows(planned, theta)
    Y = jax.random.normal(KEY, (len(real), 2)) * real[:, None]
    wanted = products(objective, theta, Y[real])
    found = products(planned, theta, Y)
    assert relative(found[0][real], wanted[0]) < 1e-12
    assert relative(found[1][real], wanted[1]) < 1e-12
    assert relative(found[2], wanted[2]) < 1e-12
    assert float(found[3]) == pytest.approx(float(wanted[3]), rel=1e-12)


def _linearize(objective, theta):
    return eqx.filter_jit(lambda o, t: o.linearize(t))(objective, theta)


def _arrays(linearization):
    return eqx.filter(linearization, eqx.is_array)


def _with(linearization, arrays):
    return eqx.combine(arrays, linearization)


def _streams(linearization: Linearization) -> list[list[int]]:
    return [
        [leaf.streams for leaf in jax.tree.leaves(rows, is_leaf=is_factored) if is_factored(leaf)]
        for rows in linearization.jacobian or ()
    ]


@pytest.mark.parametrize(
    ("name", "interior"),
    [("poisson_5d", 7), ("heat_4d", 6), ("log_fokker_planck_9d", 11), ("poisson_10d", 12)],
)
def test_a_wide_layer_has_one_stream_per_derivative(name, interior):
    """Value, first derivatives and Laplacian in the interior; the value alone elsewhere."""
    problem, _ = _catalogue(name, n=3)
    model = problem.default_model(KEY, WIDE)
    objective, theta = problem.objective(model, problem.sample(KEY))
    first, *others = _streams(_linearize(objective, theta))
    assert first == [interior]
    assert others == [[1]] * len(others)


def test_layers_that_are_not_dense_are_explicit():
    problem, model = CASES["convolution"]()
    objective, theta = problem.objective(model, problem.sample(KEY))
    linearization = _linearize(objective, theta)
    for rows in linearization.jacobian or ():
        assert not is_factored(rows.middle.weight)


def test_factoring_keeps_the_function():
    """Sums, transposes and nested calls of outer products, and what needs them formed."""
    W = jax.random.normal(KEY, (40, 30))

    def loss(W, x):
        inner = jax.jit(lambda W, x: jnp.tanh(W @ x))
        return jnp.sum(inner(W, x) ** 2) + jnp.sum((W.T @ jnp.ones(40)) ** 2) + jnp.sum(W**2)

    def dense_only(W, x):
        return jnp.sum(jnp.tanh(W @ x) ** 2) + jnp.sum(jnp.sin(W.T @ jnp.ones(40)))

    x = jnp.linspace(0, 1, 30)
    for function, has_factors in ((loss, False), (dense_only, True)):
        value, found = factored(jax.value_and_grad(function))(W, x)
        assert is_factored(found) == has_factors
        formed = found.cotangents.T @ found.inputs if has_factors else found.gradients
        assert relative(formed, jax.grad(function)(W, x)) < 1e-13
        assert float(value) == pytest.approx(float(function(W, x)), rel=1e-14)


def test_a_step_is_the_same_with_and_without_structure(monkeypatch):
    problem, model = _vector_residual()
    objective, theta = problem.objective(model, problem.sample(KEY))
    optimizer = engd_w(1e-3, 0.1)
    steps = []
    for keep in (True, False):
        monkeypatch.setattr(factoring, "is_worth_factoring", lambda factors, keep=keep: keep)
        step = eqx.filter_jit(lambda t, s: optimizer.step(objective, t, s, key=KEY))
        theta_after, *_ = step(theta, optimizer.init(theta))
        steps.append(ravel_pytree(theta_after)[0])
    assert relative(*steps) < 1e-11
