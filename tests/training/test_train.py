"""The training loop: budgets, evaluations, callbacks, schedules, divergence, reproducibility."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import natpinn
from natpinn import Box, Condition, InputError, Problem, adam, engd_w, laplacian, sgd, spring, train
from natpinn.training.cache import use_compilation_cache
from natpinn.training.evaluation import is_scheduled
from natpinn.training.limits import Limits

KEY = jax.random.key(0)
TRACES = {"residual": 0}


def _interior(u, x):
    TRACES["residual"] += 1
    return laplacian(u)(x) + 2 * jnp.pi**2 * _exact(x)


def _exact(x):
    return jnp.prod(jnp.sin(jnp.pi * x))


SQUARE = Box.unit(2)
PROBLEM = Problem(
    {
        "interior": Condition(_interior, SQUARE, points=40),
        "boundary": Condition(lambda u, x: u(x), SQUARE.boundary, points=20),
    },
    solution=_exact,
    widths=(8,),
    scaled=False,
)
MODEL = PROBLEM.default_model(KEY)
OBJECTIVE, THETA = PROBLEM.objective(MODEL, PROBLEM.sample(KEY))
EVALUATION = PROBLEM.evaluation(MODEL, KEY)


def run(optimizer, theta=THETA, **options):
    return train(OBJECTIVE, theta, optimizer, EVALUATION, key=KEY, **options)


OPTIMIZERS = {
    "sgd": sgd(1e-3, 0.9),
    "adam": adam(1e-2),
    "engd": natpinn.engd(1e-4),
    "engd_w": engd_w(1e-4),
    "spring": spring(1e-4, 0.8, 0.1, 0.1),
    "spring with a line search": spring(1e-4, 0.5, line_search=natpinn.Grid()),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_lowers_loss_and_error(name):
    result = run(OPTIMIZERS[name], steps=60)
    first, last = result.history[0], result.history[-1]
    assert result.status == "finished"
    assert last["step"] == 60
    assert last["loss"] < 0.5 * first["loss"]
    assert min(record["l2"] for record in result.history) < first["l2"]
    assert last["loss"] == pytest.approx(last["loss_interior"] + last["loss_boundary"])


def test_natural_gradients_beat_adam_by_far():
    best = {name: run(OPTIMIZERS[name], steps=200).history for name in ("adam", "engd_w")}
    errors = {n: min(r["relative_l2"] for r in history) for n, history in best.items()}
    assert errors["engd_w"] < 1e-2
    assert errors["engd_w"] < errors["adam"] / 10


def test_new_hyper_parameters_do_not_compile_again():
    run(spring(1e-3, 0.9, 0.1, 1e-3), steps=2)
    before = TRACES["residual"]
    run(spring(1e-5, 0.5, 0.01, 1e-2), steps=3)
    assert TRACES["residual"] == before
    run(sgd(1e-3, 0.1), steps=2)
    before = TRACES["residual"]
    run(sgd(1e-4, 0.9), steps=2)
    assert TRACES["residual"] == before


def test_compiled_programs_are_kept_where_the_user_says(monkeypatch, tmp_path):
    chosen = jax.config.values["jax_compilation_cache_dir"]
    use_compilation_cache()
    assert jax.config.values["jax_compilation_cache_dir"] == chosen
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        monkeypatch.setenv("NATPINN_NO_CACHE", "1")
        use_compilation_cache()
        assert jax.config.values["jax_compilation_cache_dir"] is None
        monkeypatch.delenv("NATPINN_NO_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        use_compilation_cache()
        assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path / "natpinn")
    finally:
        jax.config.update("jax_compilation_cache_dir", chosen)


def test_results_do_not_depend_on_how_steps_are_grouped():
    optimizer = OPTIMIZERS["spring"]
    together = run(optimizer, steps=23)
    apart = run(optimizer, steps=23, seconds_per_call=0.0)  # one step per call
    one, other = (ravel_pytree(result.state.theta)[0] for result in (together, apart))
    np.testing.assert_array_equal(one, other)
    assert [r["l2"] for r in together.history] == [r["l2"] for r in apart.history]


def test_evaluations_come_at_geometric_steps():
    steps = [record["step"] for record in run(OPTIMIZERS["adam"], steps=500).history]
    assert steps[:4] == [0, 1, 2, 3]
    assert steps[-1] == 500
    assert len(steps) < 120
    gaps = np.diff(steps)
    assert gaps[-2] >= 15


def test_a_time_budget_is_kept():
    result = run(OPTIMIZERS["adam"], budget=0.5)
    assert 0.4 < result.seconds < 1.0
    assert result.compile_seconds > 0


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        (Limits(steps=500), 30),  # to the evaluation at step 130
        (Limits(steps=120), 20),  # to the last step
        (Limits(budget=2.0), 10),  # the second that is left
        (Limits(steps=120, budget=2.0), 10),
        (Limits(budget=1.001), 1),  # at least one
    ],
)
def test_a_call_ends_at_an_evaluation_or_a_limit(limits, count):
    assert limits.steps_per_call(100, 1.0, 0.1, until=130, within=60.0) == count
    assert limits.steps_per_call(100, 1.0, 0.1, until=130, within=0.25) == min(count, 2)
    assert limits.steps_per_call(100, 1.0, np.inf, until=130, within=60.0) == 1


def test_callbacks_see_progress_and_can_stop():
    seen = []

    def stop_after_five(progress):
        seen.append(progress.step)
        return progress.step >= 5

    result = run(OPTIMIZERS["adam"], steps=100, callbacks=[stop_after_five])
    assert result.status == "finished"
    assert int(result.state.step) == seen[-1] == 5


def test_a_run_that_a_callback_ends_is_evaluated_there():
    assert not is_scheduled(45)
    stop = {"callbacks": [lambda progress: progress.step >= 45]}
    result = run(OPTIMIZERS["adam"], steps=100, seconds_per_call=1e-9, **stop)
    assert result.history[-1]["step"] == 45
    assert result.history[-1] != result.history[-2]


def test_a_rate_may_warm_up_from_zero():
    rate = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 5, 20)
    history = run(adam(rate), steps=3).history
    sizes = [record.get("step_size", 0.0) for record in history[1:]]
    np.testing.assert_allclose(sizes, [0.0, 2e-3, 4e-3], rtol=1e-15)  # XLA orders the operations
    with pytest.raises(InputError, match="learning_rate must be above 0"):
        adam(0.0)


def test_schedules_move_every_hyper_parameter():
    optimizer = spring(
        damping=optax.exponential_decay(1e-2, 10, 0.1),
        momentum=optax.linear_schedule(0.0, 0.9, 10),
        learning_rate=optax.cosine_decay_schedule(0.1, 20),
        norm_cap=None,
    )
    history = run(optimizer, steps=10).history
    by_step = {record["step"]: record for record in history if record["step"]}
    assert by_step[1]["damping"] == pytest.approx(1e-2)
    assert by_step[10]["damping"] == pytest.approx(1e-2 * 0.1**0.9)
    assert by_step[10]["momentum"] == pytest.approx(0.81)
    assert by_step[10]["step_size"] < by_step[1]["step_size"]


def test_divergence_stops_with_the_best_parameters():
    result = run(sgd(1e3), steps=200)
    assert result.status == "diverged"
    assert "learning rate" in result.message
    assert bool(jnp.isfinite(ravel_pytree(result.best_theta)[0]).all())
    best = min(record["l2"] for record in result.history)
    assert float(EVALUATION(result.best_theta)["l2"]) == pytest.approx(best)
    at_once = run(sgd(1e300), steps=1)
    assert at_once.status == "diverged"
    assert bool(jnp.isfinite(ravel_pytree(at_once.state.theta)[0]).all())


def test_ctrl_c_keeps_what_was_reached():
    def interrupt(progress):
        if progress.step >= 3:
            raise KeyboardInterrupt

    result = run(OPTIMIZERS["adam"], steps=100, callbacks=[interrupt])
    assert result.status == "interrupted"
    assert int(result.state.step) == 3


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: engd_w(damping=-1.0), "damping must be above 0"),
        (lambda: engd_w(damping=0.0), "damping must be above 0"),
        (lambda: engd_w(damping=float("nan")), "damping must be"),
        (lambda: spring(momentum=1.0), "momentum must be at least 0 and below 1"),
        (lambda: spring(momentum=-0.1), "momentum must be"),
        (lambda: spring(learning_rate=0.0), "learning_rate must be above 0"),
        (lambda: spring(norm_cap=-1.0), "norm_cap must be above 0"),
        (
            lambda: spring(damping="small"),  # pyright: ignore[reportArgumentType]
            "damping must be a number or a schedule",
        ),
        (lambda: spring(damping=np.float32(1e-3)), "float32"),  # pyright: ignore[reportArgumentType]
        (lambda: spring(damping=True), "damping must be a number"),
        (lambda: spring(damping=optax.constant_schedule(-1.0)), "damping must be above 0"),
        (lambda: engd_w(learning_rate=0.1, line_search=natpinn.Grid()), "not both"),
        (lambda: engd_w(line_search=cast(Any, "grid")), "LineSearch"),
        (lambda: natpinn.engd(average=1.0), "average"),
        (lambda: natpinn.engd(average=cast(Any, "x")), "average"),
        (lambda: natpinn.engd(start_at_identity=cast(Any, "maybe")), "start_at_identity"),
        (lambda: natpinn.Grid(0, -3), "smallest exponent"),
        (lambda: run(adam()), "say when to stop"),
        (lambda: run(adam(), steps=0), "steps must be a whole number from 1"),
        (lambda: run(adam(), budget=-1.0), "budget must be"),
    ],
)
def test_bad_hyper_parameters_are_explained(build, message):
    with pytest.raises(InputError, match=message):
        build()


def test_the_horizon_is_known_from_steps_or_from_speed():
    assert Limits(None, 60.0).horizon(0, 0.0) == np.inf
    assert Limits(500, 60.0).horizon(0, 0.0) == 500
    assert Limits(None, 60.0).horizon(50, 2.0) == 1500
    assert Limits(500, 60.0).horizon(50, 2.0) == 500
