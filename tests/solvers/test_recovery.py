"""Failures inside a step end in recovery or in a clear status, never in NaN parameters."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

import natpinn
from natpinn import (
    Box,
    Condition,
    InputError,
    Problem,
    adam,
    engd,
    engd_w,
    laplacian,
    load,
    solve,
    spring,
)
from natpinn.solvers.damped import by_eigenvalues, solve_damped

SQUARE = Box.unit(2)


def wave(x):
    return jnp.sin(jnp.pi * x[0]) * jnp.sin(jnp.pi * x[1])


def problem(interior=None, solution=wave, points=40):
    def poisson(u, x):
        return laplacian(u)(x) + 2 * jnp.pi**2 * wave(x)

    return Problem(
        {
            "interior": Condition(interior or poisson, SQUARE, points=points),
            "boundary": Condition(lambda u, x: u(x), SQUARE.boundary, points=20),
        },
        solution=solution,
        widths=(8,),
    )


def quick(problem, optimizer, steps=40, **options):
    return solve(problem, optimizer=optimizer, progress=False, steps=steps, **options)


@settings(max_examples=25, deadline=None)
@given(
    spread=st.floats(0, 18),
    rank=st.integers(1, 12),
    damping=st.floats(-300, -1),
    seed=st.integers(),
)
def test_a_damped_solve_ends_sound_whatever_the_spectrum(spread, rank, damping, seed):
    random = np.random.default_rng(abs(seed))
    vectors = np.linalg.qr(random.normal(size=(12, 12)))[0]
    values = np.where(np.arange(12) < rank, 10.0 ** random.uniform(-spread, 0, 12), 0.0)
    matrix = jnp.array((vectors * values) @ vectors.T)
    b = jnp.array(random.normal(size=12))
    x, info = SOLVE(matrix, b, jnp.array(10.0**damping))
    assert bool(jnp.isfinite(x).all())
    assert info.is_recovered == (info.damping != 10.0**damping)
    residual = matrix @ x + info.damping * x - b
    assert float(jnp.linalg.norm(residual)) <= 0.5 * float(jnp.linalg.norm(b))


SOLVE = jax.jit(solve_damped)


def test_a_solve_that_needs_no_help_is_left_alone():
    matrix = jnp.diag(jnp.array([1.0, 1e-3, 1e-6]))
    x, info = SOLVE(matrix, jnp.ones(3), jnp.array(1e-8))
    np.testing.assert_allclose(x, 1 / (jnp.diag(matrix) + 1e-8), rtol=1e-12)
    assert float(info.damping) == 1e-8
    assert not info.is_recovered


def test_a_recovery_begins_at_the_round_off():
    """A damping far below it is not raised tenfold again and again."""
    matrix = jnp.ones((4, 4))
    x, info = SOLVE(matrix, jnp.ones(4), jnp.array(1e-300))
    assert float(info.damping) == pytest.approx(4 * float(jnp.finfo(jnp.float64).eps))
    np.testing.assert_allclose(matrix @ x, 1, rtol=1e-6)


def test_eigenvalues_below_zero_are_clipped():
    values = jnp.array([2.0, 1.0, -0.5])
    rotation = jnp.linalg.qr(jax.random.normal(jax.random.key(0), (3, 3)))[0]
    matrix = (rotation * values) @ rotation.T
    b = rotation @ jnp.ones(3)
    x = by_eigenvalues(matrix, b, jnp.array(0.1))
    np.testing.assert_allclose(rotation.T @ x, 1 / (values.clip(0) + 0.1), rtol=1e-12)
    far, info = SOLVE(matrix, b, jnp.array(1e-12))  # no damping that is tried is large enough
    assert info.is_recovered
    assert bool(jnp.isfinite(far).all())


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf])
def test_a_hopeless_system_gives_nan_at_once(value):
    matrix = jnp.eye(3).at[1, 1].set(value)
    assert bool(jnp.isnan(SOLVE(matrix, jnp.ones(3), jnp.array(0.1))[0]).all())
    assert bool(jnp.isnan(SOLVE(jnp.eye(3), value * jnp.ones(3), jnp.array(0.1))[0]).all())


@pytest.mark.parametrize(
    "optimizer", [engd_w(1e-300), spring(1e-300), engd(1e-300)], ids=["engd_w", "spring", "engd"]
)
def test_a_singular_kernel_is_recovered_from(optimizer, tmp_path):
    def at_one_point(u, x):
        return u(0.3 * jnp.ones(2)) - 1

    solution = quick(
        problem(at_one_point, solution=None), optimizer, steps=10, out=tmp_path / "run"
    )
    summary = solution.summary
    assert summary["status"] == "finished"
    assert summary["recovered_steps"] == 10 == solution.history[-1]["recovered_steps"]
    assert summary["rejected_steps"] == 0
    assert solution.history[-1]["damping"] > 1e-300
    assert summary["best_validation_loss"] < solution.history[0]["validation_loss"]
    best = load(tmp_path / "run", problem=problem()).model
    assert bool(jnp.isfinite(ravel_pytree(jax.tree.leaves(best)[:4])[0]).all())


@pytest.mark.parametrize("optimizer", [engd_w(1e-5), adam(1e-2)], ids=["engd_w", "adam"])
@pytest.mark.parametrize("reference", [wave, None])
def test_nan_at_one_point_in_a_thousand_is_survived(optimizer, reference):
    def faulty(u, x):
        value = laplacian(u)(x) + 2 * jnp.pi**2 * wave(x)
        return jnp.where(x[0] < 0.001, jnp.nan, value)

    solution = quick(problem(faulty, reference, points=300), optimizer, steps=60)
    assert solution.summary["status"] == "finished"
    assert 0 < solution.summary["rejected_steps"] < 60
    assert bool(jnp.isfinite(solution(SQUARE.sample(jax.random.key(0), 50))).all())
    losses = [r["loss"] for r in solution.history if math.isfinite(r["loss"])]
    assert losses[-1] < losses[0]


def test_a_residual_that_is_nan_somewhere_in_every_batch_is_named(tmp_path):
    def faulty(u, x):
        return jnp.where(x[0] < 0.5, jnp.nan, u(x))

    solution = quick(problem(faulty), engd_w(1e-5), out=tmp_path / "run")
    summary = solution.summary
    assert summary["status"] == "diverged"
    assert summary["steps"] == summary["rejected_steps"] == 10
    assert "'interior' is not finite at" in summary["message"]
    assert summary["message"].endswith("make it finite there")  # fewer points would not do
    assert "of 40 points of a batch, as at x0 = 0." in summary["message"]
    best = load(tmp_path / "run", problem=problem())
    assert bool(jnp.isfinite(best(SQUARE.sample(jax.random.key(0), 50))).all())
    with pytest.raises(InputError, match="diverged"):
        natpinn.resume(tmp_path / "run", problem(), optimizer=engd_w(1e-5))


def test_a_network_that_starts_at_infinity_is_refused():
    model = problem().default_model(jax.random.key(0))
    infinite = jax.tree.map(lambda a: a * jnp.inf if isinstance(a, jax.Array) else a, model)
    with pytest.raises(InputError, match="not finite before training"):
        solve(problem(), infinite, engd_w(1e-5), steps=5, progress=False)
    huge = jax.tree.map(lambda a: a * 1e200 if isinstance(a, jax.Array) else a, model)
    summary = solve(problem(), huge, adam(), steps=50, progress=False).summary
    assert summary["status"] == "diverged"


def test_a_solution_that_is_nan_is_refused():
    with pytest.raises(InputError, match="solution is NaN"):
        quick(problem(solution=lambda x: jnp.log(x[0] - 0.5)), engd_w(1e-5))
