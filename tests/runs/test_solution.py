"""From a problem to a solution and back from disk; models and conditions of every kind."""

import json
import math
from dataclasses import replace
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import natpinn
from natpinn import (
    MLP,
    Box,
    Condition,
    Data,
    Domain,
    FirstOrder,
    FourierFeatures,
    InputError,
    Periodic,
    Problem,
    Scaled,
    auto,
    engd,
    engd_w,
    engd_w_nystrom,
    gradient,
    laplacian,
    load,
    partial,
    solve,
)
from natpinn.runs.parts import describe_optimizer

SQUARE = Box.unit(2)


def wave(x):
    return jnp.sin(jnp.pi * x[0]) * jnp.sin(jnp.pi * x[1])


def poisson(solution=wave, model_points=60):
    return Problem(
        {
            "interior": Condition(
                lambda u, x: laplacian(u)(x) + 2 * jnp.pi**2 * wave(x), SQUARE, points=model_points
            ),
            "boundary": Condition(lambda u, x: u(x) - wave(x), SQUARE.boundary, points=30),
        },
        solution=solution,
        widths=(12, 12),
    )


def quick(problem, *arguments, steps=5, **options):
    return solve(problem, *arguments, steps=steps, progress=False, **options)


def test_a_solution_is_callable_and_comes_back_from_disk(tmp_path):
    solution = quick("poisson_2d", optimizer="spring", points={"interior": 30, "boundary": 10})
    points = SQUARE.sample(jax.random.key(0), 4)
    assert solution(points).shape == (4,)
    assert solution(points[0]).shape == ()

    solution.save(tmp_path / "run")
    again = load(tmp_path / "run")
    np.testing.assert_array_equal(again(points), solution(points))
    assert again.history == solution.history
    assert again.summary == json.loads(json.dumps(solution.summary))
    again.plot(tmp_path / "again.png")
    assert len(again.plot().axes) == 6  # three panels, each with its scale
    assert "poisson_2d" in repr(again)
    with pytest.raises(InputError, match="holds another run"):
        solution.save(tmp_path / "run")


def test_a_run_is_loaded_with_the_problem_that_it_solved(tmp_path):
    solution = quick(poisson(), MLP(2, (4,), key=jax.random.key(0)), engd_w(1e-5), steps=1)
    solution.save(tmp_path / "run")
    line = Box([0.0], [1.0])
    other = Problem({"inside": Condition(lambda u, x: u(x), line)}, name="line")
    with pytest.raises(InputError, match="points have 1 coordinates"):
        load(tmp_path / "run", solution.model, other)
    system = Problem({"inside": Condition(lambda u, x: u(x), SQUARE)}, solution=lambda x: x)
    with pytest.raises(InputError, match=r"1 values, and the solution of .* has 2"):
        load(tmp_path / "run", solution.model, system)
    quick(poisson(), optimizer="engd_w", steps=1).save(tmp_path / "mlp")
    with pytest.raises(InputError, match="does not fit the model"):
        load(tmp_path / "mlp", problem=other)


def test_an_optimizer_of_ones_own_is_recorded_with_all_that_it_is():
    lion = describe_optimizer(FirstOrder(optax.lion, {"learning_rate": 1e-3}))
    wanted = {"name": "FirstOrder", "method": "lion", "settings.learning_rate": 1e-3}
    assert lion == wanted
    sketched = describe_optimizer(engd_w_nystrom(1e-5, rank=35))
    assert sketched["solver"] == "Nystrom"
    assert (sketched["solver.rank"], sketched["solver.variant"]) == (35, "gpu")
    assert describe_optimizer(engd(average=0.9)) != describe_optimizer(engd())


def test_the_run_folder_keeps_its_contract(tmp_path):
    solution = quick(poisson(), out=tmp_path / "run", optimizer=engd_w(1e-5), steps=30)
    folder = tmp_path / "run"
    names = {"config.toml", "metrics.jsonl", "summary.json", "best", "checkpoint", "solution.png"}
    assert {path.name for path in folder.iterdir()} == names
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    keys = ["step", "seconds", "loss", "loss_interior", "loss_boundary", "l2"]
    assert list(records[-1])[:6] == keys
    assert {"relative_l2", "step_size", "damping"} <= records[-1].keys()
    summary = json.loads((folder / "summary.json").read_text())
    wanted = (
        "problem optimizer parameters points steps seconds compile_seconds steps_per_second "
        "peak_memory_bytes l2 relative_l2 validation_loss best_l2 final_l2 best_relative_l2 "
        "final_relative_l2 returned_step status device versions"
    )
    assert set(wanted.split()) <= summary.keys()
    assert summary["steps"] == 30
    assert summary["best_l2"] == min(record["l2"] for record in records)
    assert summary["status"] == "finished"
    assert solution.summary["relative_l2"] < 0.1


def test_a_users_own_model_is_loaded_into_its_like(tmp_path):
    model = MLP(2, (6,), key=jax.random.key(1), embedding=Periodic((2.0, 2.0)))
    quick(poisson(), model, engd_w(1e-5), out=tmp_path / "run")
    with pytest.raises(InputError, match="like="):
        load(tmp_path / "run")
    fresh = MLP(2, (6,), key=jax.random.key(9), embedding=Periodic((2.0, 2.0)))
    loaded = load(tmp_path / "run", like=fresh, problem=poisson())
    points = SQUARE.sample(jax.random.key(0), 4)
    assert not np.allclose(loaded(points), jax.vmap(fresh)(points))
    with pytest.raises(InputError, match="shape"):
        load(tmp_path / "run", like=MLP(2, (7,), key=jax.random.key(1)), problem=poisson())
    with pytest.raises(InputError, match="not a run folder"):
        load(tmp_path)


def test_numpy_arrays_in_a_model_are_constants():
    features = FourierFeatures(2, 4, key=jax.random.key(3))
    model = MLP(2, (6,), key=jax.random.key(1), embedding=features)
    solution = quick(poisson(), model, engd_w(1e-3), steps=30)
    assert solution.summary["parameters"] == 8 * 6 + 6 + 6 + 1
    np.testing.assert_array_equal(solution.model.embedding.frequencies, features.frequencies)
    assert not np.array_equal(solution.model.layers[0].weight, model.layers[0].weight)


def test_constants_of_a_model_come_back_and_do_not_change(tmp_path):
    def model(seed):
        features = FourierFeatures(2, 4, key=jax.random.key(seed))
        return MLP(2, (6,), key=jax.random.key(1), embedding=features)

    solution = quick(poisson(), model(3), engd_w(1e-3), out=tmp_path / "run")
    loaded = load(tmp_path / "run", like=model(4), problem=poisson())
    points = SQUARE.sample(jax.random.key(0), 4)
    np.testing.assert_array_equal(loaded(points), solution(points))
    options = {"problem": poisson(), "optimizer": engd_w(1e-3), "steps": 9, "progress": False}
    with pytest.raises(InputError, match=r"embedding\.frequencies.*other values"):
        natpinn.resume(tmp_path / "run", model=model(4), **options)
    assert natpinn.resume(tmp_path / "run", model=model(3), **options).summary["steps"] == 9


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (optax.adam, {"learning_rate": 1e-3, "nesterov": True, "mu_dtype": None}),
        (optax.adamw, {"learning_rate": 1e-3, "mask": lambda t: jax.tree.map(_is_matrix, t)}),
        (optax.polyak_sgd, {"max_learning_rate": 0.1}),
        (optax.lion, {"learning_rate": optax.linear_schedule(1e-3, 0.0, 9)}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_optax_methods_are_optimizers(method, settings):
    solution = quick(poisson(), optimizer=FirstOrder(method, settings), steps=9)
    assert solution.history[-1]["loss"] < solution.history[0]["loss"]


def test_a_problem_of_ones_own_has_a_model_without_units(tmp_path):
    """Whatever box its points are in."""
    box = Box([0, 100], [1e-3, 300])
    problem = Problem({"interior": Condition(lambda u, x: u(x) - 1.0, box, points=30)})
    model = problem.default_model(jax.random.key(0))
    assert isinstance(model.embedding, Scaled)
    inputs = jax.vmap(model.embedding)(jnp.stack([*box.bounds, jnp.array([5e-4, 200.0])]))
    np.testing.assert_allclose(inputs, [[-1, -1], [1, 1], [0, 0]], atol=1e-15)
    assert natpinn.problems.get("poisson_5d").default_model(jax.random.key(0)).embedding is None

    for scaled in (True, False):
        folder = tmp_path / str(scaled)
        found = quick(replace(problem, scaled=scaled), out=folder)
        loaded = load(folder, problem=problem)
        assert (loaded.model.embedding is not None) == scaled
        points = box.sample(jax.random.key(0), 3)
        np.testing.assert_array_equal(loaded(points), found(points))


def test_the_box_of_a_model_is_around_all_conditions():
    parts = {"left": Box([0, 0], [1e-3, 1]), "right": Box([1e-3, 0], [1, 3])}
    conditions = {name: Condition(lambda u, x: u(x), box) for name, box in parts.items()}
    embedding = Problem(conditions).default_model(jax.random.key(0)).embedding
    assert isinstance(embedding, Scaled)
    np.testing.assert_allclose(embedding(jnp.array([1.0, 3.0])), 1.0)
    endless = Scaled(jnp.array([-jnp.inf, 2.0, 0.0]), jnp.array([0.0, 2.0, 4.0]))
    np.testing.assert_array_equal(endless(jnp.array([5.0, 2.0, 1.0])), [5.0, 2.0, -0.5])
    with pytest.raises(InputError, match="3 dimensions"):
        endless(jnp.zeros(2))


def test_a_pair_of_parameters_and_apply_is_a_model():
    parameters = {"w": np.random.default_rng(0).normal(size=(10, 2)), "v": np.full(10, 0.1)}

    def apply(p, x):
        return p["v"] @ jnp.tanh(p["w"] @ x)

    solution = quick(poisson(), (parameters, apply), engd_w(1e-5), steps=20)
    assert solution.summary["parameters"] == 30
    assert solution.summary["best_l2"] < solution.history[0]["l2"]


def test_neumann_and_robin_conditions_work():
    """u = cos(πx) y on the square: flux on two faces, a Robin condition on a third."""

    def exact(x):
        return jnp.cos(jnp.pi * x[0]) * x[1]

    def flux(u, point):
        x, normal = point
        return gradient(u)(x) @ normal - gradient(exact)(x) @ normal

    def robin(u, point):
        return flux(u, point) + 2 * (u(point[0]) - exact(point[0]))

    problem = Problem(
        {
            "interior": Condition(
                lambda u, x: laplacian(u)(x) + jnp.pi**2 * exact(x), SQUARE, points=80
            ),
            "flux": Condition(flux, SQUARE.faces("x0-", "x0+").with_normals, points=20),
            "robin": Condition(robin, SQUARE.faces("x1+").with_normals, points=20),
            "value": Condition(lambda u, x: u(x) - exact(x), SQUARE.faces("x1-"), points=20),
        },
        solution=exact,
        widths=(12, 12),
    )
    assert quick(problem, optimizer=engd_w(1e-6), steps=80).summary["best_relative_l2"] < 1e-2


def test_what_is_returned_is_chosen_without_the_solution(tmp_path):
    """Even where the network comes closer to what is called the solution before it is trained."""
    problem = poisson(solution=lambda x: 0.1 * x[0])
    solution = quick(problem, optimizer=engd_w(1e-5), steps=40, out=tmp_path / "run")
    summary, records = solution.summary, {r["step"]: r for r in solution.history}
    returned = records[summary["returned_step"]]
    assert returned["validation_loss"] == min(r["validation_loss"] for r in solution.history)
    assert summary["best_l2"] < 0.5 * summary["l2"] == 0.5 * returned["l2"]
    points = SQUARE.sample(jax.random.key(1), 2000)
    for found in (solution, natpinn.load(tmp_path / "run", problem=problem)):
        error = jnp.sqrt(jnp.mean((found(points) - 0.1 * points[:, 0]) ** 2))
        assert float(error) == pytest.approx(summary["l2"], rel=0.1)  # other points


def test_a_residual_that_is_small_at_its_points_alone_is_told():
    problem = poisson().with_points({"interior": 6, "boundary": 4}).with_held_points()
    with pytest.warns(natpinn.NatpinnWarning, match="at points that no step has seen"):
        quick(problem, optimizer=engd_w(1e-10), steps=30)


def test_without_a_solution_the_validation_loss_decides(tmp_path):
    solution = quick(poisson(solution=None), optimizer=engd_w(1e-5), out=tmp_path / "r", steps=30)
    assert solution.summary["best_l2"] is None
    assert solution.summary["best_validation_loss"] < 1e-2 * solution.history[0]["validation_loss"]
    target = solution.history[10]["validation_loss"]
    early = quick(poisson(solution=None), optimizer=engd_w(1e-5), stop_at=target, steps=1000)
    assert early.summary["final_validation_loss"] <= target
    assert early.summary["steps"] < 1000


def test_a_system_without_a_solution_says_how_many_values_it_has():
    def cauchy_riemann(w, x):
        (u_x, u_y), (v_x, v_y) = gradient(w)(x)
        return jnp.stack([u_x - v_y, u_y + v_x])

    def values(w, x):
        return w(x) - jnp.stack([x[0] ** 2 - x[1] ** 2, 2 * x[0] * x[1]])

    conditions = {
        "equation": Condition(cauchy_riemann, SQUARE, points=30),
        "boundary": Condition(values, SQUARE.boundary, points=20),
    }
    found = quick(Problem(conditions, widths=(8,), outputs=2), steps=20)
    assert found([0.5, 0.5]).shape == (2,)
    with pytest.raises(InputError, match="outputs must be a whole number from 1, got 0"):
        Problem(conditions, outputs=0)


def test_a_problem_may_be_measured_data_alone():
    data = Data(np.random.default_rng(0).random((5, 2)), np.ones(5))
    solution = quick(Problem({"data": Condition(lambda u, point: u(point[0]) - point[1], data)}))
    assert solution.summary["status"] == "finished"
    assert solution.history[-1]["loss"] < solution.history[0]["loss"]


@pytest.mark.parametrize("optimizer", [auto(), natpinn.adam(), natpinn.kfac()])
def test_modules_that_hold_functions_are_models(optimizer, tmp_path):
    model = eqx.nn.MLP(2, "scalar", 8, 1, lambda x: jnp.tanh(x), key=jax.random.key(0))
    problem = poisson()
    solution = quick(problem, model, optimizer, out=tmp_path / "run")
    assert solution.history[-1]["loss"] < solution.history[0]["loss"]
    again = load(tmp_path / "run", like=model, problem=problem)
    assert float(again([0.5, 0.5])) == float(solution([0.5, 0.5]))


def test_a_picture_of_a_union_leaves_out_what_is_not_in_it(tmp_path, monkeypatch):
    corner = Box([0.0, 0.0], [1.0, 0.5]) | Box([0.0, 0.5], [0.5, 1.0])
    conditions = {"inside": Condition(lambda u, x: u(x) - wave(x), corner, points=20)}
    shown = []
    monkeypatch.setattr(
        "natpinn.pictures.solution._map", lambda figure, axis, values, *rest: shown.append(values)
    )
    quick(Problem(conditions, wave, widths=(4,)), steps=1).plot(tmp_path / "picture.png")
    assert len(shown) == 3
    for values in shown:
        assert np.isnan(values[61:, 61:]).all()
        assert np.isfinite(values[:59]).all()
        assert np.isfinite(values[:, :59]).all()


def test_a_solution_is_evaluated_at_points():
    solution = quick("poisson_2d", points={"interior": 10, "boundary": 10}, steps=1)
    assert solution([0.5, 0.5]).shape == ()
    for points in (0.5, np.ones((3, 5, 2))):
        with pytest.raises(InputError, match="at one point"):
            solution(points)


def test_stop_at_ends_a_run_early():
    solution = quick(poisson(), optimizer=engd_w(1e-5), stop_at=0.1, steps=1000)
    assert solution.summary["final_l2"] <= 0.1
    assert solution.summary["steps"] < 100


def test_the_same_seed_gives_the_same_result():
    one, two, other = (quick(poisson(), seed=seed).history[-1]["loss"] for seed in (3, 3, 4))
    assert one == two
    assert one != other


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: quick(poisson(), MLP(3, (4,), key=jax.random.key(0))),
            r"'interior' cannot be evaluated.*\(does the model take 2 coordinates",
        ),
        (lambda: quick(poisson(), MLP(2, (4,), 2, key=jax.random.key(0))), r"values of shape \(\)"),
        (lambda: quick(_with_residual(lambda u, x: jnp.ones((2, 2)))), r"'odd'.*got \(2, 2\)"),
        (lambda: quick(_with_residual(lambda u, x: None)), "'odd'.*NoneType"),
        (lambda: quick(_with_residual(lambda u, x: jnp.float32(u(x)))), "'odd'.*float32"),
        (lambda: quick(_with_residual(lambda u, x: x @ jnp.ones(5))), "'odd' cannot be evaluated"),
        (lambda: quick(_with_residual(lambda u, x: laplacian(u, x))), r"write laplacian\(u\)\(x\)"),
        (lambda: quick(_with_residual(lambda u, x: np.sin(x[0]))), "jnp.sin, with jax.numpy"),
        (lambda: quick(_with_residual(lambda u, x: math.sin(x[0]))), "place of math.sin"),
        (lambda: quick(_with_residual(lambda u, x: u(x) if x[0] > 0 else x[0])), "jnp.where"),
        (lambda: quick(_with_residual(lambda u, x: u(x)[1])), r"MLP with values of shape \(\)"),
        (lambda: quick(_with_residual(lambda u, x: u(x), SQUARE.boundary.with_normals)), "a pair"),
        (lambda: quick(poisson(), points={"interor": 3}), "did you mean 'points.interior'"),
        (lambda: quick(poisson(), points={"interior": 0}), "whole number from 1, got 0"),
        (lambda: quick(poisson(), optimizer="sprign"), "did you mean 'spring'"),
        (lambda: quick("poisson5d"), "did you mean 'poisson_5d'"),
        (lambda: quick(poisson(), _float32_model()), "float32"),
        (lambda: quick(poisson(), lambda x: x[0]), "nothing to train"),
        (lambda: quick(poisson(), 3), "got int"),
        (lambda: quick(poisson(solution=lambda x: jnp.nan * x[0])), "solution.*NaN"),
        (lambda: quick(poisson(solution=lambda x: [x[0], x[1]])), "one array"),
        (lambda: quick(poisson(solution=3)), "function of one point"),
        (lambda: quick(poisson(), optimizer=optax.adam(1e-3)), "FirstOrder"),
        (lambda: quick(poisson(), optimizer=natpinn.spring), "optimizer is one of"),
        (lambda: quick(3), "a problem is"),
        (lambda: quick(_with_residual(lambda u, x: partial(u, 5)(x))), "'odd'.*coordinate 5"),
        (
            lambda: poisson().objective(MLP(2, (3,), key=jax.random.key(0)), _float32_points()),
            "float32",
        ),
        (lambda: Problem({"a.b": Condition(lambda u, x: u(x), SQUARE)}), "letters"),
        (lambda: Problem(cast(Any, {1: Condition(lambda u, x: u(x), SQUARE)})), "letters"),
        (lambda: Problem(_one_condition(), widths=cast(Any, 64)), "list, as in"),
        (lambda: Problem(_one_condition(), outputs=cast(Any, "2")), "outputs must be a whole"),
        (lambda: Problem(_one_condition(), evaluation_points=0), "whole number from 1, got 0"),
        (lambda: MLP(2, cast(Any, (8.0,)), key=jax.random.key(0)), "a width must be a whole"),
        (lambda: Periodic(cast(Any, 1.0)), "tuple of numbers"),
        (lambda: FirstOrder(optax.lion, cast(Any, 1e-3)), "settings have names"),
        (lambda: FirstOrder(cast(Any, "lion"), {}), "a function of optax"),
        (lambda: natpinn.engd(average=cast(Any, None)), "average must be"),
        (lambda: natpinn.spring(norm_cap=1e-2, line_search=natpinn.Grid()), "place of a norm cap"),
        (lambda: natpinn.kfac(momentum=0.9), "momentum from the quadratic model"),
        (lambda: quick(poisson(), optimizer="adam", track=["condition_number"]), "is tracked for"),
        (lambda: Problem({}), "at least one condition"),
        (lambda: Problem(_mixed_dimensions()), "one dimension"),
    ],
)
def test_bad_problems_and_models_are_explained(build, message):
    with pytest.raises(InputError, match=message):
        build()


def _is_matrix(leaf):
    return leaf.ndim > 1


def _one_condition():
    return {"interior": Condition(lambda u, x: u(x), SQUARE)}


def _with_residual(residual, domain: Domain = SQUARE):
    return Problem({"odd": Condition(residual, domain)}, widths=(4,))


def _float32_model():
    model = MLP(2, (4,), key=jax.random.key(0))
    return jax.tree.map(lambda a: a.astype(jnp.float32) if eqx.is_inexact_array(a) else a, model)


def _float32_points():
    points = poisson().sample(jax.random.key(0))
    return jax.tree.map(lambda p: p.astype(jnp.float32), points)


def _mixed_dimensions():
    def residual(u, x):
        return u(x)

    return {"a": Condition(residual, SQUARE), "b": Condition(residual, Box.unit(3))}


def test_the_error_is_measured_in_the_interior_whatever_the_order():
    ordered = poisson()
    swapped = Problem(dict(reversed(ordered.conditions.items())), wave, widths=(12, 12))
    assert isinstance(swapped.domain, Box)
    assert quick(swapped, steps=40).summary["best_relative_l2"] < 0.1


def test_held_points_are_trained_on_and_others_validate():
    held = poisson(solution=None).with_held_points(seed=1)
    one, other = (held.sample(jax.random.key(i)) for i in (0, 1))
    np.testing.assert_array_equal(one["interior"], other["interior"])
    evaluation = held.evaluation(held.default_model(jax.random.key(0)), jax.random.key(0))
    assert not np.array_equal(evaluation.objective.points["interior"], one["interior"])


def test_a_problem_in_another_dimension_comes_back_from_disk(tmp_path):
    problem = natpinn.problems.get("poisson_5d", dimension=3, points={"interior": 20}, widths=(6,))
    solution = quick(problem, out=tmp_path / "run")
    assert load(tmp_path / "run").model.layers[0].weight.shape == (6, 3)
    assert solution.config["problem"]["dimension"] == 3


def test_dimension_is_a_setting():
    heat = natpinn.problems.get("heat_4d", dimension=10)
    assert heat.domain.dimension == 11
    model = heat.default_model(jax.random.key(0), (8,))
    assert partial(model, 0)(jnp.zeros(11)).shape == ()
    with pytest.raises(InputError, match="even"):
        natpinn.problems.get("poisson_10d", dimension=7)


@pytest.mark.parametrize("name", natpinn.problems.CATALOGUE)
def test_exact_solutions_solve_their_problem(name):
    problem = natpinn.problems.get(name)
    points = problem.with_points(dict.fromkeys(problem.conditions, 6)).sample(jax.random.key(0))
    for key, condition in problem.conditions.items():
        residual = jax.jit(jax.vmap(lambda x, c=condition: c.residual(problem.solution, x)))
        assert float(jnp.abs(residual(points[key])).max()) < 1e-10


@pytest.mark.parametrize("name", ["heat_4d", "log_fokker_planck_9d"])
def test_initial_values_hold_where_time_begins(name):
    problem = natpinn.problems.get(name)
    (begin, *lower), (_, *upper) = problem.domain.bounds
    initial = problem.conditions["initial"].domain.sample(jax.random.key(0), 20)
    assert bool(jnp.all(initial[:, 0] == begin))
    assert bool(jnp.all((initial[:, 1:] > jnp.stack(lower)) & (initial[:, 1:] < jnp.stack(upper))))
