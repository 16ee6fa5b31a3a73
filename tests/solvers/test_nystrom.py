"""Sketches of the kernel, and conjugate gradients, against dense truth."""

from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

import natpinn
from natpinn import (
    AdaptiveNystrom,
    ConjugateGradients,
    Dual,
    InputError,
    Linearization,
    Nystrom,
    engd_w_nystrom,
    spring_nystrom,
)
from natpinn.solvers.cg import conjugate_gradients
from natpinn.solvers.ladder import Ladder
from natpinn.solvers.ladder import start as start_ladder
from natpinn.solvers.sketch import LowRank, gpu_efficient, stable

KEY = jax.random.key(0)
N = 40
ALGORITHMS = {"gpu": gpu_efficient, "standard": stable}
DECAYS = {
    "flat": np.ones(N),
    "polynomial": np.arange(1.0, N + 1) ** -2.0,
    "exponential": 10.0 ** -np.arange(0, 12, 12 / N),
    "steps": np.repeat([1.0, 1e-3, 1e-6, 1e-9], N // 4),
}


def matrix(values, seed=0, dtype: Any = np.float64):
    vectors = np.linalg.qr(np.random.default_rng(seed).normal(size=(N, N)))[0]
    return jnp.array((vectors * values) @ vectors.T, dtype)


@eqx.filter_jit
def approximate(A, name, rank, key):
    return ALGORITHMS[name](lambda omega: A @ omega, N, rank, key, A.dtype)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_at_full_rank_a_sketch_solves_exactly(name, decay):
    A, b = matrix(DECAYS[decay]), jax.random.normal(KEY, (N,))
    for rank in (N, N - 3):  # with its probes the smaller one has all directions too
        for damping in (1e-2, 1e-4):
            x, info = approximate(A, name, rank, KEY).solve(b, jnp.array(damping))
            wanted = jnp.linalg.solve(A + damping * jnp.eye(N), b)
            scale = float(jnp.linalg.norm(wanted))
            np.testing.assert_allclose(x, wanted, rtol=0, atol=1e-8 * scale)
            assert float(info.details["missed"]) == 0


def error_bound(values, rank):
    """E|A − Â| ≤ …, Proposition 2.2 of Frangella, Tropp and Udell (arXiv 2110.02820)."""
    bounds = []
    for p in range(2, rank - 1):
        head, tail = values[rank - p], values[rank - p :].sum()
        spread = 2 * np.e**2 * rank / (p**2 - 1)
        bounds.append((1 + 2 * (rank - p) / (p - 1)) * head + spread * tail)
    return min(bounds)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("rank", [6, 20, 31])
def test_the_mean_error_obeys_the_bound_and_is_measured(decay, rank):
    values = DECAYS[decay]
    A = matrix(values)
    for name in ALGORITHMS:
        draws = [approximate(A, name, rank, jax.random.key(i)) for i in range(12)]
        errors = [float(jnp.linalg.norm(A - d.dense, 2)) for d in draws]
        assert np.mean(errors) <= error_bound(values, rank) + 1e-13

    draws = [approximate(A, "gpu", rank, jax.random.key(i)) for i in range(12)]
    first = [d.basis[:, :rank] for d in draws]  # the others measure what these have missed
    errors = [float(jnp.linalg.norm(A - basis @ basis.T, 2)) for basis in first]
    if np.mean(errors) > 1e-10:
        ratios = [float(d.missed) / e for d, e in zip(draws, errors, strict=True)]
        assert 0.2 < min(ratios) <= max(ratios) < 1.5


@pytest.mark.parametrize("damping", [1e-1, 1e-3, 1e-9])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_sketch_solves_by_its_formula(name, damping):
    """(Â + λI)⁻¹ S + (I − S)/(λ + σ) with S = Â (Â + σI)⁻¹, below full rank."""
    found = approximate(matrix(DECAYS["polynomial"]), name, 6, KEY)
    b, eye, sigma = jax.random.normal(KEY, (N,)), np.eye(N), float(found.missed)
    share = found.dense @ np.linalg.inv(found.dense + sigma * eye)
    inside = np.linalg.solve(found.dense + damping * eye, share @ b)
    wanted = inside + (b - share @ b) / (damping + sigma)
    x, _ = found.solve(b, jnp.array(damping))
    assert sigma > 1e-4
    np.testing.assert_allclose(x, wanted, rtol=0, atol=1e-7 * float(jnp.linalg.norm(wanted)))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_singular_matrix_is_shifted_up_once(name):
    """A + νI has a Cholesky factor; the standard algorithm takes ν out again."""
    values = jnp.repeat(jnp.array([1.0, 0.0]), N // 2)
    found = approximate(jnp.diag(values), name, N, KEY)
    shift = float(jnp.finfo(jnp.float64).eps) * (N // 2) ** 0.5
    assert float(found.shift) == pytest.approx(shift, rel=1e-6)
    kept = found.shift if name == "gpu" else 0.0
    null = jnp.diag(found.dense)[N // 2 :]
    np.testing.assert_allclose(null, kept, rtol=1e-6, atol=1e-6 * shift)


@settings(max_examples=30, deadline=None)
@given(
    decay=st.sampled_from(sorted(DECAYS)),
    rank=st.sampled_from([1, 7, 25, N]),
    scale=st.floats(-8, 8),
    damping=st.floats(-300, 2),
    is_double=st.booleans(),
    name=st.sampled_from(sorted(ALGORITHMS)),
    seed=st.integers(0, 100),
)
def test_sketches_are_sound(decay, rank, scale, damping, is_double, name, seed):
    """Positive semidefinite, never above A + νI, and a solve that is bounded by what it missed."""
    dtype = np.float64 if is_double else np.float32
    A = matrix(10.0**scale * DECAYS[decay], seed, dtype)
    found = approximate(A, name, rank, jax.random.key(seed))
    assert found.missed.dtype == dtype
    size, eps = float(jnp.linalg.norm(A, 2)), float(jnp.finfo(dtype).eps)
    lowest = jnp.linalg.eigvalsh(found.dense.astype(jnp.float64))[0]
    gap = jnp.linalg.eigvalsh((A - found.dense).astype(jnp.float64))[0]
    round_off = 1e3 * N * eps * size + float(found.shift)
    assert float(lowest) >= -round_off
    assert float(gap) >= -round_off
    b = jax.random.normal(jax.random.key(seed), (N,), dtype)
    small = max(10.0**damping, float(jnp.finfo(dtype).tiny))
    x, _ = found.solve(b, jnp.array(small, dtype))
    assert bool(jnp.isfinite(x).all()) or small < 1e-30  # 1/damping itself overflows at full rank
    if rank < N:
        bound = 1 / max(float(found.missed), 1e-300) + 1 / (small + float(found.missed))
        assert float(jnp.linalg.norm(x)) <= 10 * bound * float(jnp.linalg.norm(b))


@pytest.fixture(scope="module")
def trained():
    """A linearization of poisson_5d with 200 rows after some training, and its kernel."""
    sizes = {"interior": 160, "boundary": 40}
    problem = natpinn.problems.get("poisson_5d", points=sizes, widths=(24, 24))
    model = problem.default_model(KEY)
    objective, theta = problem.objective(model, problem.sample(KEY))
    evaluation = problem.with_evaluation_points(100).evaluation(model, KEY)
    optimizer = natpinn.engd_w(1e-6)
    result = natpinn.train(objective, theta, optimizer, evaluation, key=KEY, steps=15)
    linearization = eqx.filter_jit(lambda o, t: o.linearize(t))(objective, result.state.theta)
    return linearization, jax.jit(lambda: linearization.kernel())()


@eqx.filter_jit
def solve_with(solver, linearization, damping):
    state = solver.init(linearization.theta)
    system, _ = solver.factorize(linearization, state, key=KEY)
    x, info = system.solve(linearization.residual, damping)
    return ravel_pytree(x)[0], info


@pytest.mark.parametrize(
    "solver",
    [
        Nystrom(200, "gpu"),
        Nystrom(200, "standard"),
        ConjugateGradients(tolerance=1e-12, most_iterations=5000),
        ConjugateGradients(0.1, tolerance=1e-12, most_iterations=5000),
    ],
    ids=lambda solver: repr(solver)[:40],
)
def test_solvers_agree_with_the_exact_one(trained, solver):
    linearization, K = trained
    damping = 1e-4 * jnp.linalg.norm(K, 2)
    wanted, _ = solve_with(Dual(), linearization, damping)
    found, _ = solve_with(solver, linearization, damping)
    assert float(jnp.linalg.norm(found - wanted) / jnp.linalg.norm(wanted)) < 1e-8


def test_a_preconditioner_saves_most_iterations(trained):
    linearization, K = trained
    damping = 1e-6 * jnp.linalg.norm(K, 2)
    counts = {}
    for rank in (None, 0.1, 0.3):
        solver = ConjugateGradients(rank, tolerance=1e-10, most_iterations=5000)
        _, info = solve_with(solver, linearization, damping)
        counts[rank] = int(info.details["cg_iterations"])
    assert counts[0.3] < counts[0.1] < counts[None] / 2
    assert counts[0.3] < counts[None] / 5


def test_conjugate_gradients_end_in_as_many_iterations_as_there_are_eigenvalues():
    A = matrix(np.repeat([1.0, 2.0, 5.0, 9.0], N // 4))
    b = jax.random.normal(KEY, (N,))
    y, iterations = conjugate_gradients(lambda v: A @ v, b, lambda r: r, 1e-10, 100)
    np.testing.assert_allclose(A @ y, b, atol=1e-9)
    assert int(iterations) == 4
    y, iterations = conjugate_gradients(lambda v: A @ v, 0 * b, lambda r: r, 1e-10, 100)
    assert not y.any()
    assert int(iterations) == 0


def test_a_sketch_never_forms_the_kernel(trained):
    linearization, K = trained
    n = len(K)
    for solver, forms in ((Nystrom(20), False), (ConjugateGradients(20), False), (Dual(), True)):
        program = jax.make_jaxpr(
            lambda s=solver: solve_with(s, linearization, jnp.array(1e-3))[0]
        )()
        assert (f"f64[{n},{n}]" in str(program)) == forms


def test_a_tiny_damping_with_momentum_ends_in_sound_steps():
    """The paper's damping and rank for poisson_5d, at which its published code overflows."""
    sizes = {"interior": 160, "boundary": 40}
    solution = natpinn.solve(
        natpinn.problems.get("poisson_5d", points=sizes, widths=(24, 24)),
        optimizer=spring_nystrom(6.8e-10, 0.9, 0.1, rank=0.1),
        steps=100,
        progress=False,
    )
    summary, losses = solution.summary, [record["loss"] for record in solution.history]
    assert summary["status"] == "finished"
    assert summary["rejected_steps"] == 0
    assert max(losses) < 2 * losses[0]
    assert losses[-1] < losses[0]
    assert solution.history[-1]["missed_share"] > 0


def test_what_a_sketch_has_missed_is_not_amplified(trained):
    """Divided by the damping alone it would be: that is what overflows."""
    linearization, K = trained
    b, damping = linearization.residual, jnp.array(6.8e-10)
    system, _ = Nystrom(0.1).factorize(linearization, None, key=KEY)
    sketch = cast(LowRank, cast(Any, system).sketch)
    y, _ = sketch.solve(b, damping)
    basis = sketch.basis
    unchecked = jnp.linalg.solve(basis @ basis.T + damping * jnp.eye(len(b)), b)
    assert float(jnp.linalg.norm(K @ y - b)) <= 2 * float(jnp.linalg.norm(b))
    assert float(jnp.linalg.norm(K @ unchecked - b)) > 1e3 * float(jnp.linalg.norm(b))


def test_traces_agree_at_full_rank(trained):
    linearization, K = trained
    wanted = float(jnp.trace(K))
    solvers: list[Any] = [Dual(), AdaptiveNystrom(), ConjugateGradients()]
    for solver in (*solvers, *map(full_rank, ALGORITHMS)):
        system, _ = solver.factorize(linearization, solver.init(linearization.theta), key=KEY)
        assert float(system.trace()) == pytest.approx(wanted, rel=1e-9)
    small, _ = Nystrom(50).factorize(linearization, None, key=KEY)
    assert 0.5 * wanted < float(small.trace()) <= wanted


def full_rank(variant):
    return Nystrom(200, variant)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Nystrom(0), "rank is"),
        (lambda: Nystrom(1.5), "rank is"),
        (lambda: Nystrom(True), "rank is"),
        (lambda: Nystrom(0.1, "fast"), "variant"),
        (lambda: engd_w_nystrom(rank="many"), "rank is"),  # pyright: ignore[reportArgumentType]
        (lambda: ConjugateGradients(0.1, tolerance=0), "tolerance"),
        (lambda: ConjugateGradients(most_iterations=0), "most_iterations"),
        (lambda: ConjugateGradients(most_iterations=True), "most_iterations"),
        (lambda: ConjugateGradients(-1), "rank is"),
    ],
)
def test_bad_settings_are_explained(build, message):
    with pytest.raises(InputError, match=message):
        build()


LADDER = Ladder((10, 20), (0.3, 0.6))


def follow(falls, steps, missed_share=0.0, noise=0.0):
    """The rungs of some steps in which the loss falls by so many nats, given for each rung."""
    state, rungs, log_loss = start_ladder(), [], 0.0
    random = np.random.default_rng(0)
    move = jax.jit(LADDER.move)
    for _ in range(steps):
        state = move(state, jnp.exp(log_loss + noise * random.normal()))
        rungs.append(int(state.rung))
        state = state._replace(missed_share=jnp.array(missed_share if rungs[-1] < 2 else 0.0))
        log_loss -= falls[rungs[-1]]
    return rungs


def test_an_automatic_rank_stays_with_a_sketch_that_misses_nothing():
    assert follow((0.3, 0.0, 0.0), 50) == [0] * 50
    rungs = follow((0.01, 0.01, 0.1), 300)
    assert set(rungs) == {0, 1}
    assert list(np.diff(np.flatnonzero(rungs))) == [21, 41, 81]  # one step each, ever more rarely


def test_an_automatic_rank_climbs_where_a_sketch_misses_much():
    rungs = follow((0.1, 0.1, 0.1), 100, missed_share=1e-3)
    assert rungs[:4] == [0, 1, 2, 2]
    assert set(rungs[2:]) == {1, 2}  # from time to time the rung below is tried
    assert rungs[2:].count(1) < 5


def test_what_is_below_the_damping_is_not_missed():
    solver, state = AdaptiveNystrom(), start_ladder()
    for missed, wanted in ((1e-3, 0.5), (1e-9, 0.0)):
        details = {"missed": jnp.array(missed), "missed_share": jnp.array(0.5)}
        info = natpinn.SolveInfo(jnp.array(1e-6), jnp.array(False), details)
        after = solver.update(state, info)
        assert after is not None
        assert float(after.missed_share) == wanted


def test_an_automatic_rank_keeps_a_sketch_that_goes_much_further_than_exact_steps():
    top = jnp.array(2)
    state = start_ladder()._replace(home=top, rung=top, wait=jnp.array(1), loss=jnp.array(1.0))
    state = state._replace(slow_steps=jnp.array(3))
    rungs = []
    for loss in (0.99, 0.1, 0.01, 0.009, 0.0089):
        state = LADDER.move(state, jnp.array(loss))
        rungs.append(int(state.rung))
    assert rungs == [1, 1, 1, 2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("variant", ALGORITHMS)
def test_an_automatic_rank_ends_where_the_exact_solve_does(variant):
    sizes = {"interior": 240, "boundary": 60}
    problem = natpinn.problems.get("poisson_2d", points=sizes, widths=(40, 40))
    options: dict[str, Any] = {"steps": 120, "progress": False}
    optimizer = natpinn.engd_w(1e-8, solver=natpinn.AdaptiveNystrom(variant))
    auto = natpinn.solve(problem, optimizer=optimizer, **options)
    exact = natpinn.solve(problem, optimizer=natpinn.engd_w(1e-8), **options)
    ranks = [record["sketch_rank"] for record in auto.history[1:]]
    assert min(ranks) < 300
    assert ranks.count(300) > 0.7 * len(ranks)
    assert auto.summary["best_l2"] < 3 * exact.summary["best_l2"]


def test_a_sketch_that_would_not_pay_is_not_made(trained):
    linearization, _ = trained
    cheap, dear = Ladder.of(linearization), 10 * linearization.kernel_operations()
    assert cheap.costs == tuple(sorted(cheap.costs))
    assert all(cost < 0.8 for cost in cheap.costs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Linearization, "product_operations", lambda self, k: dear)
        assert Ladder.of(linearization).ranks == ()
        x, info = solve_with(AdaptiveNystrom(), linearization, jnp.array(1e-3))
    wanted, _ = solve_with(Dual(), linearization, jnp.array(1e-3))
    assert float(jnp.linalg.norm(x - wanted) / jnp.linalg.norm(wanted)) < 1e-9
    assert float(info.details["sketch_rank"]) == 200
