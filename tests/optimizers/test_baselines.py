"""L-BFGS, Hessian-free and K-FAC against dense truth and golden numbers."""

from collections import OrderedDict
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden import PROBLEMS, Golden
from jax.flatten_util import ravel_pytree

import natpinn
from natpinn import Box, Condition, Fixed, InputError, Problem, laplacian, partial
from natpinn.least_squares.factoring import dense_layers
from natpinn.least_squares.objective import LeastSquares
from natpinn.optimizers.hessian_free import CURVATURES, HessianFree, Iterates
from natpinn.optimizers.kfac import (
    Kfac,
    LayerCurvature,
    Moments,
    _bases,
    layer_moments,
    precondition,
)
from natpinn.optimizers.kfac_update import minimize_model

KEY = jax.random.key(0)


@eqx.filter_jit
def take_step(optimizer, *arguments, key):
    return optimizer.step(*arguments, key=key)


@pytest.fixture(scope="module")
def small():
    """poisson_2d on 40 rows with a net of 45 parameters, and its dense Jacobian."""
    sizes = {"interior": 30, "boundary": 10}
    problem = natpinn.problems.get("poisson_2d", points=sizes, widths=(5, 4))
    objective, theta = problem.objective(problem.default_model(KEY), problem.sample(KEY))
    flat, unravel = ravel_pytree(theta)
    dense = jax.jacrev(lambda v: objective.residual(unravel(v)))(flat)
    return objective, theta, dense


# K-FAC


def every_stream(model, x, spatial):
    """Value, first derivatives and Laplacian over some coordinates, each a stream of its own."""
    value, tangents, lap = x, jnp.eye(len(x)), jnp.zeros(len(x))
    for i, layer in enumerate(model.layers):
        value = layer.weight @ value + layer.bias
        tangents, lap = tangents @ layer.weight.T, layer.weight @ lap
        if i < len(model.layers) - 1:
            value = jnp.tanh(value)
            slope = 1 - value**2
            bend = -2 * value * slope
            lap = slope * lap + bend * jnp.sum(tangents[spatial] ** 2, axis=0)
            tangents = slope * tangents
    value, tangents, lap = value[0], tangents[:, 0], lap[0]
    kept = 0.0 * (value + tangents.sum() + lap)  # streams that the residual does not need
    return value, tangents, lap, kept


def poisson(u, x):
    _, _, lap, kept = every_stream(u, x, slice(0, None))
    return lap + jnp.pi**2 * jnp.sum(jnp.cos(jnp.pi * x)) + kept


def heat(u, x):
    _, gradient, lap, kept = every_stream(u, x, slice(1, None))
    return gradient[0] - 0.25 * lap + kept


def fokker_planck(q, x):
    _, gradient, lap, kept = every_stream(q, x, slice(1, None))
    drift = 0.5 * gradient[1:] @ x[1:]
    return gradient[0] - 4.5 - drift - jnp.sum(gradient[1:] ** 2) - lap + kept


RESIDUALS = {"poisson_5d": poisson, "heat_4d": heat, "log_fokker_planck_9d": fokker_planck}


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_factors_of_kfac_agree_with_golden_ones(name):
    golden = Golden(name)
    objective, theta = golden.objective, golden.theta
    interior = Condition(RESIDUALS[name], golden.problem.conditions["interior"].domain)
    conditions = OrderedDict(objective.conditions, interior=interior)
    kept = LeastSquares(conditions, objective.points, objective.frozen)
    np.testing.assert_allclose(
        kept.residual(theta), objective.residual(theta), rtol=1e-11, atol=1e-12
    )
    layers = dense_layers(theta)
    moments, _ = eqx.filter_jit(layer_moments)(kept, theta, layers)
    for i, (first, others) in enumerate(moments):
        for kind, found in (("interior", first), ("condition", others)):
            for part, factor in (("input", found.inputs), ("gradient", found.cotangents)):
                wanted = golden.numbers[f"kfac_{kind}_{part}_{i}"]
                largest = max(1, np.abs(wanted).max())
                np.testing.assert_allclose(factor, wanted, rtol=0, atol=1e-12 * largest)


def random_moments(key, size):
    root = jax.random.normal(key, (size, 2 * size))
    return root @ root.T / size


def test_the_direction_solves_the_damped_sum_of_kronecker_products():
    theta = {"layer": (jnp.ones((3, 4)), jnp.ones(3))}
    keys = jax.random.split(KEY, 5)
    interior = Moments(random_moments(keys[0], 5), random_moments(keys[1], 3))
    others = Moments(random_moments(keys[2], 5), random_moments(keys[3], 3))
    gradient = jax.tree.map(lambda leaf: jax.random.normal(keys[4], leaf.shape), theta)
    for damping in (1e-8, 1e-3, 10.0):
        bases = _bases(interior, others, jnp.array(damping))
        curvature = LayerCurvature(interior, others, *bases)
        found = precondition(gradient, dense_layers(theta), [False], [curvature])
        damped = [m + damping * jnp.eye(len(m)) for m in (*interior, *others)]
        dense = jnp.kron(damped[1], damped[0]) + jnp.kron(damped[3], damped[2])
        weight, bias = gradient["layer"]
        wanted = jnp.linalg.solve(dense, jnp.hstack([weight, bias[:, None]]).ravel())
        weight, bias = found["layer"]
        got = jnp.hstack([weight, bias[:, None]]).ravel()
        assert float(jnp.linalg.norm(got - wanted)) < 1e-9 * float(jnp.linalg.norm(wanted))


def test_on_a_linear_model_kfac_is_energy_natural_gradient_descent():
    fit = Condition(lambda u, x: u(x) - jnp.sin(3 * x[0]) - x[1], Box.unit(2), points=30)
    problem = Problem({"fit": fit})
    model = eqx.nn.Linear(2, "scalar", key=KEY)
    objective, theta = problem.objective(model, problem.sample(KEY))
    plain = natpinn.engd(damping=1e-12, learning_rate=1.0)
    kronecker = natpinn.kfac(
        1e-12, learning_rate=1.0, average=0.0, start_at_identity=False, refresh_every=1
    )

    def step(optimizer: Any) -> Any:
        return ravel_pytree(
            take_step(optimizer, objective, theta, optimizer.init(theta), key=KEY)[0]
        )[0]

    reached = [step(optimizer) for optimizer in (plain, kronecker)]
    np.testing.assert_allclose(reached[0], reached[1], rtol=1e-8)


def test_rate_and_momentum_minimize_the_quadratic_model(small):
    objective, theta, dense = small
    keys = jax.random.split(KEY, 2)
    d, u = (jax.random.normal(key, (dense.shape[1],)) for key in keys)
    _, unravel = ravel_pytree(theta)
    residual, push = jax.linearize(objective.residual, theta)
    damping = 0.1
    rows = jnp.vstack([dense, damping**0.5 * jnp.eye(dense.shape[1])])
    wanted = jnp.linalg.lstsq(
        jnp.stack([rows @ -d, rows @ u], axis=1), -jnp.append(residual, jnp.zeros(len(d)))
    )[0]
    found = minimize_model(push, residual, unravel(d), unravel(u), damping)
    np.testing.assert_allclose(jnp.stack(found), wanted, rtol=1e-9)
    alone, momentum = minimize_model(push, residual, unravel(d), unravel(0 * u), damping)
    assert float(momentum) == 0
    along = rows @ d
    assert float(alone) == pytest.approx(float(dense @ d @ residual / (along @ along)), rel=1e-9)


def test_layer_factors_reproduce_gradients_of_systems_and_transposed_layers():
    """Several rows per point, x @ W in place of W @ x, a layer without bias, two evaluations."""
    keys = jax.random.split(KEY, 3)
    parameters = {
        "first": {"kernel": jax.random.normal(keys[0], (2, 5)), "bias": jnp.full(5, 0.1)},
        "middle": {"kernel": jax.random.normal(keys[1], (5, 5))},
        "last": {"kernel": jax.random.normal(keys[2], (5, 2)), "bias": jnp.zeros(2)},
    }

    def apply(p, x):
        x = jnp.tanh(x @ p["first"]["kernel"] + p["first"]["bias"])
        x = jnp.tanh(p["middle"]["kernel"] @ x)
        return x @ p["last"]["kernel"] + p["last"]["bias"]

    def residual(u, x):
        curl = laplacian(lambda x: u(x)[0])(x) + u(x)[1]
        return jnp.stack([curl, u(x)[0] * u(x + 0.1)[1]])

    problem = Problem({"inside": Condition(residual, Box.unit(2), points=6)})
    objective, theta = problem.objective((parameters, apply), problem.sample(KEY))
    layers = dense_layers(theta)
    assert [layer.bias is None for layer in layers] == [False, False, True]
    scale = jnp.full(6, 6**-0.5)
    found = objective.layer_factors("inside", theta, layers, objective.points["inside"], scale)
    flat, unravel = ravel_pytree(theta)
    dense = jax.vmap(unravel)(jax.jacrev(lambda v: objective.residual(unravel(v)))(flat))
    leaves = jax.tree.leaves(dense)
    for layer, of_layer in zip(layers, found, strict=True):
        assert of_layer.is_transposed == (layer.bias is not None)
        factors = of_layer.factors
        gradient = jnp.einsum("nso,nsi->nio", factors.cotangents, factors.inputs)
        if layer.bias is None:
            gradient = jnp.swapaxes(gradient, 1, 2)  # W @ x: outputs first
        else:
            np.testing.assert_allclose(gradient[:, -1], leaves[layer.bias], atol=1e-12)
            gradient = gradient[:, :-1]
        np.testing.assert_allclose(gradient, leaves[layer.weight], atol=1e-12)


SAME_COTANGENT = {
    "u + u_x": lambda u, x: u(x) + partial(u, 0)(x),
    "u + u_x + u_xx": lambda u, x: u(x) + partial(u, 0)(x) + partial(u, 0, 0)(x),
    "u + laplacian": lambda u, x: u(x) + laplacian(u)(x),
    "u_t + u - laplacian": lambda u, x: partial(u, 0)(x) + u(x) - laplacian(u)(x),
    "gradient by reverse mode": lambda u, x: jnp.sum(jax.grad(u)(x)) + u(x),
    "twice": lambda u, x: u(x) + u(x) ** 2 + u(-x),
}


@pytest.mark.parametrize("name", SAME_COTANGENT)
def test_a_bias_belongs_to_the_streams_that_it_is_added_to(name):
    """Also where value and derivatives enter a residual with the same factor."""
    problem = Problem({"inside": Condition(SAME_COTANGENT[name], Box.unit(2), points=3)})
    model = natpinn.MLP(2, (4, 4), key=KEY)
    objective, theta = problem.objective(model, problem.sample(KEY))
    scale = jnp.full(3, 3**-0.5)
    found = objective.layer_factors(
        "inside", theta, dense_layers(theta), objective.points["inside"], scale
    )
    flat, unravel = ravel_pytree(theta)
    dense = jax.vmap(unravel)(jax.jacrev(lambda v: objective.residual(unravel(v)))(flat))
    for layer, of_layer in zip(dense.layers, found, strict=True):
        factors = of_layer.factors
        gradient = factors.matrix().reshape(factors.shape)
        np.testing.assert_allclose(gradient[..., :-1], layer.weight, atol=1e-12)
        np.testing.assert_allclose(gradient[..., -1], layer.bias, atol=1e-12)


def test_kfac_takes_the_same_steps_however_layers_are_written():
    """W @ x + b and x @ W + b, with square layers."""
    keys = jax.random.split(KEY, 3)
    weights = [
        jax.random.normal(key, shape)
        for key, shape in zip(keys, ((5, 2), (5, 5), (1, 5)), strict=True)
    ]
    biases = [jnp.full(n, 0.1) for n in (5, 5, 1)]

    def forward(parameters, x, multiply):
        for i, (weight, bias) in enumerate(parameters):
            x = multiply(weight, x) + bias
            x = jnp.tanh(x) if i < 2 else x
        return x[0]

    left = [*zip(weights, biases, strict=True)], lambda p, x: forward(p, x, lambda w, x: w @ x)
    turned = [(w.T, b) for w, b in left[0]], lambda p, x: forward(p, x, lambda w, x: x @ w)
    problem = natpinn.problems.get("poisson_2d", points={"interior": 12, "boundary": 6})
    reached = []
    for model in (left, turned):
        objective, theta = problem.objective(model, problem.sample(KEY))
        optimizer = natpinn.kfac(1e-3, refresh_every=1)
        state = optimizer.init(theta)
        for _ in range(2):
            theta, state, _ = take_step(optimizer, objective, theta, state, key=KEY)
        reached.append(jax.tree.leaves(theta))
    for plain, other in zip(*reached, strict=True):
        np.testing.assert_allclose(plain, other.T, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("parameters", "apply", "named"),
    [
        ({"scale": jnp.ones(())}, lambda p, x: p["scale"] * x[0], "scale"),
        ({"conv": jnp.ones((3, 2, 2))}, lambda p, x: jnp.sum(p["conv"] * x), "conv"),
        ({"w": jnp.ones((2, 2))}, lambda p, x: jnp.sum(p["w"] ** 2) * x[0], "w"),
        (
            {"w": jnp.ones((2, 2)), "b": jnp.ones(2)},
            lambda p, x: jnp.sum(jnp.tanh(p["w"] @ x) * p["b"]),
            "w",
        ),
        ({"w": jnp.ones((2, 1))}, lambda p, x: jnp.sum(x @ p["w"]), "w"),
    ],
    ids=["scalar", "convolution", "no layer", "no bias", "x @ W"],
)
def test_kfac_names_the_layer_that_it_cannot_treat(parameters, apply, named):
    problem = Problem({"fit": Condition(lambda u, x: u(x) - 1.0, Box.unit(2), points=4)})
    with pytest.raises(InputError, match=f"'{named}'"):
        natpinn.solve(problem, (parameters, apply), natpinn.kfac(), steps=1, progress=False)


def test_kfac_renews_its_decompositions_when_they_are_due(small):
    objective, theta, _ = small
    optimizer = natpinn.kfac(1e-6, refresh_every=2)
    step = eqx.filter_jit(lambda theta, state: optimizer.step(objective, theta, state, key=KEY))
    state, bases = optimizer.init(theta), []
    for _ in range(4):
        theta, state, _ = step(theta, state)
        bases.append(np.asarray(state.layers[1].inputs.values))
    assert (bases[0] == bases[1]).all()
    assert (bases[1] != bases[2]).any()
    assert (bases[2] == bases[3]).all()


# Hessian-free


@pytest.mark.parametrize("curvature", CURVATURES)
def test_curvature_products_agree_with_dense_ones(small, curvature):
    objective, theta, dense = small
    flat, unravel = ravel_pytree(theta)
    wanted = {
        "ggn": dense.T @ dense,
        "hessian": jax.hessian(lambda v: objective.loss(unravel(v)))(flat),
    }[curvature]
    product = CURVATURES[curvature](objective.linearize(theta))
    found = jax.vmap(lambda v: ravel_pytree(product(unravel(v)))[0])(jnp.eye(len(flat)))
    np.testing.assert_allclose(found, wanted, atol=1e-11 * float(jnp.abs(wanted).max()))


def exhaustive(damping: float = 1e-2, **changes: Any) -> HessianFree:
    """Steps that solve their system as well as they can."""
    settings = {"adapt_damping": False, "backtracks": False, "most_iterations": 400}
    return HessianFree(damping, Fixed(1.0), tolerance=1e-14, progress=0.0, **(settings | changes))


def test_hessian_free_with_many_iterations_is_the_primal_solve(small):
    objective, theta, _ = small
    wanted, _, _ = natpinn.engd(damping=1e-2, learning_rate=1.0).step(
        objective, theta, natpinn.engd(damping=1e-2).init(theta), key=KEY
    )
    optimizer = exhaustive()
    found, _, info = take_step(optimizer, objective, theta, optimizer.init(theta), key=KEY)
    start, reached, exact = (ravel_pytree(t)[0] for t in (theta, found, wanted))
    assert float(jnp.linalg.norm(reached - exact)) < 1e-8 * float(jnp.linalg.norm(exact - start))
    assert 10 < float(info.details["cg_iterations"]) < 400


def test_conjugate_gradients_start_from_the_last_solution_and_stop_when_they_gain_little(small):
    objective, theta, _ = small
    patient, quick = exhaustive(), HessianFree(1e-2, Fixed(1e-9), adapt_damping=False)
    counts = {}
    for name, optimizer in (("patient", patient), ("quick", quick)):
        state = optimizer.init(theta)
        for round_ in ("cold", "warm"):
            _, state, info = take_step(optimizer, objective, theta, state, key=KEY)
            counts[name, round_] = float(info.details["cg_iterations"])
    assert counts["quick", "cold"] < counts["patient", "cold"]
    assert counts["quick", "warm"] < counts["quick", "cold"]


def test_the_damping_follows_how_well_the_model_predicts(small):
    objective, theta, _ = small
    for damping, wanted in ((1e4, 2 / 3), (1e-9, 3 / 2)):
        optimizer = HessianFree(damping, Fixed(1.0), curvature="ggn", backtracks=False)
        _, state, info = take_step(optimizer, objective, theta, optimizer.init(theta), key=KEY)
        ratio = float(info.details["reduction_ratio"])
        assert (ratio > 0.75) if wanted < 1 else (ratio < 0.25)
        assert float(state.damping) == pytest.approx(wanted * damping)


def test_backtracking_ends_at_an_iterate_with_a_smaller_loss(small):
    objective, theta, _ = small
    reached = {}
    for backtracks in (False, True):
        optimizer = HessianFree(1e-6, Fixed(1.0), adapt_damping=False, backtracks=backtracks)
        theta_after, _, _ = take_step(optimizer, objective, theta, optimizer.init(theta), key=KEY)
        reached[backtracks] = float(objective.loss(theta_after))
    assert reached[True] < reached[False]


def test_backtracking_begins_at_the_newest_iterate_that_is_kept():
    """And goes back as long as the loss falls; iterate k is the number k here."""
    optimizer = HessianFree(1e-6, Fixed(1.0), most_iterations=60)
    counts = optimizer._kept_counts
    kept = jnp.array([*counts, 0.0])[:, None]
    done, zero = counts[-2] + 1, jnp.zeros(1)
    last = jnp.full(1, float(done))
    found = Iterates(last, zero, zero, jnp.array(done), zero, kept, jnp.array(True))
    for lowest in (done, *counts[-2:-6:-1]):
        losses = jnp.abs(jnp.arange(done + 1.0) - lowest)
        reached = optimizer._backtrack(
            found, losses[done], lambda x, of=losses: of[x[0].astype(int)]
        )
        assert float(reached[0]) == lowest


def test_negative_curvature_along_the_gradient_does_not_stop_hessian_free():
    problem = natpinn.problems.get("poisson_2d", points={"interior": 30, "boundary": 10})
    for seed in range(4):
        optimizer = natpinn.hessian_free(1e-3, curvature="hessian", adapt_damping=False)
        solution = natpinn.solve(
            problem,
            natpinn.MLP(2, (5, 4), key=jax.random.key(seed)),
            optimizer,
            steps=8,
            progress=False,
        )
        assert any(record["update_norm"] > 0 for record in solution.history[1:])


def test_armijo_takes_no_step_that_raises_the_loss(small):
    objective, theta, _ = small
    uphill = jax.tree.map(jnp.negative, jax.grad(objective.loss)(theta))
    size = natpinn.Armijo().step_size(objective, theta, uphill, objective.loss(theta), jnp.array(0))
    assert float(size) == 0


# L-BFGS, and batches that are held


def test_lbfgs_solves_a_linear_problem_on_a_held_batch():
    fit = Condition(lambda u, x: u(x) - jnp.sin(3 * x[0]) - x[1], Box.unit(2), points=30)
    problem = Problem({"fit": fit})
    model = natpinn.MLP(2, (), key=KEY)
    objective, theta = problem.objective(model, problem.sample(KEY))
    optimizer = natpinn.lbfgs(memory_size=5)
    step = eqx.filter_jit(lambda theta, state: optimizer.step(objective, theta, state, key=KEY))
    state = optimizer.init(theta)
    losses = []
    for _ in range(25):
        theta, state, info = step(theta, state)
        losses.append(float(info.loss))
    slope = jax.grad(objective.loss)(theta)
    assert float(jnp.abs(ravel_pytree(slope)[0]).max()) < 1e-9
    assert all(after <= before * (1 + 1e-12) for before, after in pairwise(losses))


def test_on_a_new_batch_lbfgs_compares_gradients_of_that_batch(small):
    objective, theta, _ = small
    other = objective.resample(jax.random.key(7))
    optimizer = natpinn.lbfgs(memory_size=4)
    first, state, _ = take_step(optimizer, objective, theta, optimizer.init(theta), key=KEY)
    for batch in (objective, other):
        _, after, _ = take_step(optimizer, batch, first, state, key=KEY)
        found = jax.tree.map(lambda leaf: leaf[0], after.memory.diff_updates_memory)
        slopes = [jax.grad(batch.loss)(t) for t in (first, theta)]
        wanted = ravel_pytree(jax.tree.map(jnp.subtract, *slopes))[0]
        np.testing.assert_allclose(ravel_pytree(found)[0], wanted, atol=1e-10)


def test_a_rejected_step_gets_another_batch_where_batches_are_held():
    """A residual that is NaN at one point in twenty must not end the run."""
    hole = Condition(lambda u, x: jnp.where(x[0] < 0.05, jnp.nan, u(x) - 1.0), Box.unit(2))
    problem = Problem({"fit": hole}, lambda x: jnp.ones(())).with_points({"fit": 5})
    solution = natpinn.solve(
        problem,
        natpinn.MLP(2, (4,), key=KEY),
        natpinn.adam(),
        steps=400,
        steps_per_batch=20,
        progress=False,
    )
    assert solution.summary["status"] == "finished"
    assert 0 < solution.summary["rejected_steps"] < 40


@pytest.mark.parametrize("name", ["lbfgs", "hessian_free", "kfac"])
def test_every_method_goes_through_the_same_loop(name, tmp_path):
    options: dict[str, Any] = {
        "points": {"interior": 40, "boundary": 20},
        "steps_per_batch": 5,
        "progress": False,
    }
    whole = natpinn.solve("poisson_2d", optimizer=name, steps=60, out=tmp_path / "whole", **options)
    assert whole.summary["status"] == "finished"
    assert whole.summary["rejected_steps"] == 0
    assert whole.summary["best_l2"] < 0.5 * whole.history[0]["l2"]
    natpinn.solve("poisson_2d", optimizer=name, steps=33, out=tmp_path / "parts", **options)
    parts = natpinn.resume(tmp_path / "parts", steps=60, progress=False)
    assert parts.history[-1]["loss"] == whole.history[-1]["loss"]
    assert "steps_per_batch = 5" in (tmp_path / "whole" / "config.toml").read_text()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: natpinn.lbfgs(memory_size=0), "memory_size"),
        (lambda: natpinn.lbfgs(line_search_steps=2.5), "a whole number from 1"),  # pyright: ignore
        (lambda: natpinn.hessian_free(curvature="fisher"), "curvature"),
        (lambda: natpinn.hessian_free(damping=-1.0), "damping"),
        (lambda: natpinn.hessian_free(damping=lambda step: 1.0), "damping"),  # pyright: ignore[reportArgumentType]
        (lambda: natpinn.hessian_free(damping="much"), "damping"),  # pyright: ignore[reportArgumentType]
        (lambda: natpinn.hessian_free(most_iterations=0), "most_iterations"),
        (lambda: natpinn.hessian_free(learning_rate=1.0, line_search=natpinn.Armijo()), "not both"),
        (lambda: natpinn.hessian_free(adapt_damping="no"), "adapt_damping"),  # pyright: ignore
        (lambda: natpinn.kfac(start_at_identity="False"), "start_at_identity"),  # pyright: ignore
        (lambda: natpinn.Armijo(factor=2.0), "factor"),
        (lambda: natpinn.kfac(refresh_every=0), "refresh_every"),
        (lambda: natpinn.kfac(average=1.5), "average"),
        (lambda: natpinn.kfac(learning_rate=0.1, line_search=natpinn.Grid()), "not both"),
        (lambda: Kfac(1e-6, "grid"), "Searched"),  # pyright: ignore[reportArgumentType]
        (lambda: natpinn.engd_w(line_search=natpinn.Quadratic()), "LineSearch"),  # pyright: ignore
        (lambda: natpinn.solve("poisson_2d", steps=1, steps_per_batch=0), "steps_per_batch"),
    ],
)
def test_bad_settings_are_explained(build, message):
    with pytest.raises(InputError, match=message):
        build()
