"""Plans keep the memory of a step under a limit, and change nothing else."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.flatten_util import ravel_pytree

import natpinn
from natpinn import (
    Grid,
    InputError,
    adam,
    auto,
    engd,
    engd_w,
    hessian_free,
    kfac,
    memory,
    spring,
    train,
)
from natpinn.least_squares.footprint import Demand
from natpinn.memory import free_bytes, parse_bytes, show_bytes, used_bytes
from natpinn.models.theta import parameter_count
from natpinn.optimizers.line_search import descend
from natpinn.parallel import processes as cluster
from natpinn.parallel.devices import make_mesh
from natpinn.parallel.plan import Plan
from natpinn.planning import fit as planner
from natpinn.planning import planned as planned_module
from natpinn.planning.explain import explain
from natpinn.planning.fit import choose, peak
from natpinn.planning.planned import plan_step, program_bytes, step_memory
from natpinn.planning.size import linearize_flops, size_of, system_flops

KEY = jax.random.key(0)


def setup(name="poisson_5d", widths=(128, 128), **points):
    problem = natpinn.problems.get(name)
    problem = problem.with_points(points or dict.fromkeys(problem.conditions, 60))
    model = problem.default_model(KEY, widths)
    return *problem.objective(model, problem.sample(KEY)), problem.evaluation(model, KEY)


def test_a_tighter_limit_holds_less_and_computes_more():
    objective, theta, _ = setup(interior=400, boundary=100)
    size = size_of(objective, theta, engd_w())
    assert size.rows == 500
    assert size.explicit_bytes == 8 * 500 * parameter_count(theta)
    assert size.held_bytes < size.explicit_bytes
    largest = peak(size, Plan())
    seen, flops = [], []
    for limit in [2 * largest, 0.8 * largest, size.fixed_bytes * 1.4]:
        plan = choose(size, int(limit))
        assert size.fixed_bytes < peak(size, plan) <= limit
        seen.append((plan.held, plan.working_bytes is None))
        flops.append(linearize_flops(size, plan))
    assert seen == [(True, True), (True, False), (False, False)]  # whole, in slices, streamed
    assert flops[0] == flops[1] < flops[2]
    with pytest.raises(InputError, match=r"fewer points.* or raise --memory-limit"):
        choose(size, size.fixed_bytes)


def test_all_processes_plan_for_the_memory_of_the_first(monkeypatch):
    monkeypatch.setattr(cluster, "from_first", lambda own: dict.fromkeys(own, 2_000_000))
    assert step_memory(None) == 2_000_000
    assert step_memory(5_000_000) == 3_000_000


@pytest.mark.parametrize("share", [0.7, 0.5])
def test_the_compiled_program_stays_under_the_limit(share, monkeypatch):
    monkeypatch.setattr(memory, "used_bytes", lambda: 0)
    objective, theta, _ = setup(interior=400, boundary=100)
    limit = int(share * peak(size_of(objective, theta, engd_w()), Plan()))
    planned = plan_step(objective, theta, engd_w(), limit)
    assert planned.compiled is not None
    assert planned.compiled <= planned.available == limit


def test_the_program_decides_where_the_prediction_is_too_low(monkeypatch):
    objective, theta, _ = setup(interior=400, boundary=100)
    limit = int(0.8 * program_bytes(objective, theta, spring()))
    honest = planner.phases
    monkeypatch.setattr(planner, "phases", lambda *a: {k: v // 3 for k, v in honest(*a).items()})
    monkeypatch.setattr(planned_module, "WORTH_CHECKING", 0.0)
    monkeypatch.setattr(memory, "used_bytes", lambda: 0)
    planned = plan_step(objective, theta, spring(), limit)
    assert planned.compiled is not None
    assert planned.compiled <= limit
    assert planned.plan != Plan()


@pytest.mark.parametrize("optimizer", [kfac(), hessian_free()], ids=["kfac", "hessian_free"])
def test_methods_without_a_kernel_are_planned_for_what_they_take(optimizer, monkeypatch):
    monkeypatch.setattr(memory, "used_bytes", lambda: 0)
    objective, theta, _ = setup(interior=4000, boundary=100)
    whole = peak(size_of(objective, theta, optimizer), Plan())
    assert 0.7 < program_bytes(objective, theta, optimizer) / whole < 1.3
    planned = plan_step(objective, theta, optimizer, whole // 3)
    assert planned.compiled is not None
    assert planned.compiled <= whole // 3


@pytest.mark.parametrize("share", [0.6, 0.25])
def test_with_more_rows_than_parameters_a_gramian_is_planned_for(share, monkeypatch):
    monkeypatch.setattr(memory, "used_bytes", lambda: 0)
    objective, theta, _ = setup(widths=(16, 16), interior=4000, boundary=100)
    size = size_of(objective, theta, auto())
    p = parameter_count(theta)
    assert size.demand is Demand.GRAMIAN
    assert system_flops(size) == (4100 * p * (p + 1), p**3 // 3)
    whole = peak(size, Plan())
    assert 0.7 < program_bytes(objective, theta, auto()) / whole < 1.3
    planned = plan_step(objective, theta, auto(), int(share * whole))
    assert planned.compiled is not None
    assert planned.compiled <= int(share * whole)
    assert linearize_flops(size, planned.plan) == linearize_flops(size, Plan())
    assert "for the Gramian" in explain(planned)
    few, *_ = setup(widths=(16, 16), interior=40, boundary=10)
    assert size_of(few, theta, auto()).demand is Demand.KERNEL


@pytest.mark.parametrize(
    "optimizer",
    [engd_w(1e-2), engd(1e-2), adam(), kfac(1e-3), hessian_free(most_iterations=4)],
    ids=["engd_w", "engd", "adam", "kfac", "hessian_free"],
)
def test_a_run_in_little_memory_is_the_same_run(optimizer):
    objective, theta, evaluation = setup("poisson_2d", (40, 40))
    small = Plan(held=False, points_at_once=25, working_bytes=40_000, candidates_at_once=1)
    results = [
        train(
            objective.planned(plan),
            theta,
            optimizer,
            evaluation.planned(plan),
            key=KEY,
            steps=6,
        )
        for plan in (Plan(), small)
    ]
    one, other = (ravel_pytree(result.state.theta)[0] for result in results)
    assert float(jnp.linalg.norm(other - one) / jnp.linalg.norm(one)) < 1e-9
    assert results[1].history[-1]["l2"] == pytest.approx(results[0].history[-1]["l2"])


def test_a_grid_search_that_stops_early_finds_what_a_full_one_finds():
    """From many starts, good directions and bad ones, and for any number of sizes at once."""
    objective, theta, _ = setup("poisson_2d", (10,), interior=20, boundary=10)
    flat, unravel = ravel_pytree(theta)
    sizes = 2.0 ** jnp.arange(-30, 1)

    @partial(jax.jit, static_argnums=2)
    def search(theta, direction, at_once):
        planned = objective.planned(Plan(candidates_at_once=at_once))
        return Grid().step_size(planned, theta, direction, objective.loss(theta), jnp.array(0))

    @jax.jit
    def best(theta, direction):
        losses = jax.vmap(lambda size: objective.loss(descend(theta, direction, size)))(sizes)
        i = jnp.argmin(losses)
        return jnp.where(losses[i] < objective.loss(theta), sizes[i], 0.0)

    gradient = jax.jit(jax.grad(objective.loss))
    found = set()
    for i in range(30):
        a, b = jax.random.split(jax.random.fold_in(KEY, i))
        start = unravel(flat + jax.random.normal(a, flat.shape))
        slope = ravel_pytree(gradient(start))[0]
        noise = jax.random.normal(b, flat.shape) * jnp.linalg.norm(slope) * (i % 3) / 3
        direction = unravel((slope + noise) * 4.0 ** (i % 7 - 5) * (-1 if i % 10 == 9 else 1))
        wanted = float(best(start, direction))
        assert [float(search(start, direction, n)) for n in (1, 2, 8)] == [wanted] * 3
        found.add(wanted)
    assert 0.0 in found
    assert len(found) > 5


@pytest.mark.parametrize(
    ("text", "count"),
    [("8GB", 8 * 10**9), ("512MiB", 2**29), ("1.5 gb", 15 * 10**8), ("4096", 4096), (7, 7)],
)
def test_sizes_in_memory_are_read(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["much", "-1GB", "0", "8XB", "1.2.3GB", "iB", ""])
def test_sizes_that_cannot_be_read_are_explained(text):
    with pytest.raises(InputError, match="written 8GB or 512MiB"):
        parse_bytes(text)


def test_this_machine_has_memory():
    assert 10**8 < used_bytes() < used_bytes() + free_bytes() < 10**14
    assert show_bytes(8 * 10**9) == "8 GB"
    with pytest.raises(InputError, match="in use before training starts"):
        plan_step(*setup(interior=5, boundary=5)[:2], adam(), 1000)


def test_the_memory_of_a_step_falls_with_the_devices():
    objective, theta, _ = setup("poisson_2d", (400, 400), interior=64, boundary=64)
    one, eight = (
        program_bytes(objective.planned(plan), theta, engd_w(1e-3, 0.1))
        for plan in (Plan(), Plan(mesh=make_mesh(8)))
    )
    state = 10 * 8 * parameter_count(theta)  # what every device has a copy of
    assert eight - state < (one - state) / 4
