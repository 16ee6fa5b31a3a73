"""The optimizer that sets its own damping, momentum and step size."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from natpinn import (
    AdaptiveNystrom,
    Auto,
    Box,
    Condition,
    ConjugateGradients,
    Dual,
    InputError,
    Nystrom,
    Primal,
    Problem,
    Smaller,
    auto,
    laplacian,
    solve,
    train,
)
from natpinn.optimizers.trend import Trend

KEY = jax.random.key(0)


def _exact(x):
    return jnp.prod(jnp.sin(jnp.pi * x))


def _problem(weight=1.0, length=1.0):
    square = Box([0, 0], [length, length])

    def residual(u, x):
        return length**2 * laplacian(u)(x) + 2 * jnp.pi**2 * _exact(x / length)

    return Problem(
        {
            "interior": Condition(residual, square, weight, 40),
            "boundary": Condition(lambda u, x: u(x), square.boundary, weight, 20),
        },
        solution=lambda x: _exact(x / length),
        widths=(12, 12),
    )


PROBLEM = _problem()
MODEL = PROBLEM.default_model(KEY)
OBJECTIVE, THETA = PROBLEM.objective(MODEL, PROBLEM.sample(KEY))
EVALUATION = PROBLEM.evaluation(MODEL, KEY)


@eqx.filter_jit
def take_step(optimizer, *arguments, key):
    return optimizer.step(*arguments, key=key)


def run(optimizer, **options):
    return train(OBJECTIVE, THETA, optimizer, EVALUATION, key=KEY, **options)


@pytest.fixture(scope="module")
def result():
    return run(auto(), steps=200)


def test_it_needs_no_settings(result):
    assert result.status == "finished"
    assert min(r["relative_l2"] for r in result.history) < 2e-3
    assert result.history[-1]["rejected_steps"] == 0


def test_the_step_falls_to_zero_at_a_known_end(result):
    sizes = {r["step"]: r["step_size"] for r in result.history if "step_size" in r}
    assert sizes[1] == pytest.approx(0.2 / (1 - 0.5**2) ** 0.5)  # of the direction, as in SPRING
    assert 0.2 * (1 / 200) / 0.25 <= sizes[200] < 0.01
    timed = run(auto(), budget=1.0).history[-1]["step_size"]
    assert timed < 0.1


def test_a_run_settles_before_its_end(result):
    """It starts again with much damping and no momentum, and surprises little from then on."""
    searching, settling = auto().until(1000.0), auto().until(50.0)
    state = auto().init(THETA)._replace(step=jnp.array(40), damping=jnp.array(1e-9))
    state = state._replace(phi=THETA, bias=jnp.array(1.0), age=jnp.array(1e4))
    _, on, _ = take_step(searching, OBJECTIVE, THETA, state, key=KEY)
    _, calmer, _ = take_step(settling, OBJECTIVE, THETA, state, key=KEY)
    assert (bool(on.is_settling), bool(calmer.is_settling)) == (False, True)
    assert float(on.damping) < 1e-6 < float(calmer.damping)
    _, fresh, _ = take_step(
        settling, OBJECTIVE, THETA, state._replace(phi=auto().init(THETA).phi), key=KEY
    )
    np.testing.assert_array_equal(ravel_pytree(calmer.phi)[0], ravel_pytree(fresh.phi)[0])

    nearly = settling.until(52.0)  # an end that has moved a little does not begin it again
    _, again, _ = take_step(nearly, OBJECTIVE, THETA, calmer._replace(step=jnp.array(38)), key=KEY)
    assert bool(again.is_settling)
    _, gone_on, _ = take_step(searching, OBJECTIVE, THETA, calmer, key=KEY)
    assert not bool(gone_on.is_settling)
    later = [r["surprise"] for r in result.history if r["step"] > 180]
    assert max(later) < 0.5


def test_momentum_grows_and_damping_falls(result):
    records = result.history[1:]
    assert records[0]["momentum"] == pytest.approx(0.5)
    assert max(r["momentum"] for r in records) > 0.8
    assert min(r["damping"] for r in records) < 1e-3 * records[0]["damping"]


def test_a_run_that_is_stopped_early_returns_what_has_settled_and_goes_on_from_before():
    def straight(**options):
        return train(OBJECTIVE, THETA, auto(), EVALUATION, key=KEY, steps=130, **options)

    stopped = straight(callbacks=[lambda progress: progress.step >= 80])
    step = int(stopped.state.step)
    assert 80 <= step < 130
    assert step < stopped.returned["step"] <= step + step // 4
    searched = min(record["validation_loss"] for record in stopped.history)
    assert stopped.returned["validation_loss"] < 0.1 * searched
    found = float(EVALUATION(stopped.best_theta)["validation_loss"])
    assert found == pytest.approx(stopped.returned["validation_loss"], rel=1e-6)

    gone_on, whole = straight(resume=stopped.snapshot), straight()
    assert gone_on.returned == whole.history[-1] | {"seconds": gone_on.returned["seconds"]}
    for one, other in zip(*(jax.tree.leaves(r.state.theta) for r in (gone_on, whole)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("end", "step", "least"),
    [
        (100, 5, 1e-15),
        (425, 5, 10**-21.5),
        (600, 5, 1e-28),
        (9000, 5, 1e-28),
        (np.inf, 425, 10**-21.5),
    ],
)
def test_the_least_damping_follows_the_number_of_steps(end, step, least):
    """Of the run, or taken so far where the end is not known."""
    hot = auto(surprise=1e9).until(end)
    state = hot.init(THETA)._replace(step=jnp.array(step), damping=jnp.array(1e-27))
    for _ in range(2):
        _, state, _ = take_step(hot, OBJECTIVE, THETA, state, key=KEY)
    assert float(state.damping) == pytest.approx(least, rel=1e-6 if end < np.inf else 0.2, abs=0)


def test_it_does_not_depend_on_the_scale_of_the_loss():
    """Weights of 4 and 1 give the same steps: a power of two changes no digit."""

    def steps(weight):
        problem = _problem(weight)
        objective, theta = problem.objective(MODEL, problem.sample(KEY))
        optimizer, state = auto(), auto().init(theta)
        taken, info = [], None
        for i in range(8):
            batch = objective.resample(jax.random.fold_in(KEY, i))
            theta, state, info = take_step(optimizer, batch, theta, state, key=KEY)
            taken.append(ravel_pytree(theta)[0])
        assert info is not None
        return jnp.array(taken), state, info

    (one, state, info), (four, other, scaled) = steps(1.0), steps(4.0)
    np.testing.assert_allclose(four, one, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(other.damping, state.damping, rtol=1e-12)
    np.testing.assert_allclose(scaled.loss, 4 * info.loss, rtol=1e-6)


def test_it_does_not_depend_on_the_units_of_the_domain():
    errors = [
        [r["relative_l2"] for r in solve(problem, steps=25, progress=False).history]
        for problem in (_problem(), _problem(length=1024.0), _problem(length=1 / 1024))
    ]
    np.testing.assert_allclose(errors[1], errors[0], rtol=1e-6)
    np.testing.assert_allclose(errors[2], errors[0], rtol=1e-6)


def test_both_forms_of_the_solve_take_the_same_steps():
    """With fewer rows than parameters, and with more."""
    states = []
    for solver in (Dual(), Primal(), Smaller()):
        optimizer = Auto(solver, 0.2, 0.9, 1e-2, 1e-3, 5.0, 0.1, 0.7)
        theta, state = THETA, optimizer.init(THETA)
        for _ in range(3):
            theta, state, _ = take_step(optimizer, OBJECTIVE, theta, state, key=KEY)
        states.append(ravel_pytree(theta)[0])
    for other in states[1:]:
        np.testing.assert_allclose(other, states[0], rtol=1e-6, atol=1e-9)
    assert Smaller().footprint(10, 100) == Dual().footprint(10, 100)
    assert Smaller().footprint(100, 10) == Primal().footprint(100, 10)


def test_every_solver_that_takes_each_batch_by_itself_will_do():
    for solver in (Nystrom(0.3), ConjugateGradients()):
        optimizer = Auto(solver, 0.2, 0.9, 1e-2, 1e-3, 5.0, 0.1, 0.7)
        _, state, info = take_step(optimizer, OBJECTIVE, THETA, optimizer.init(THETA), key=KEY)
        assert float(info.details["surprise"]) > 0
        assert float(state.damping) > 0
    for solver, name in ((Primal(0.9), r"average=0\.9"), (AdaptiveNystrom(), "AdaptiveNystrom")):
        with pytest.raises(InputError, match=name):
            Auto(solver, 0.2, 0.9, 1e-2, 1e-3, 5.0, 0.1, 0.7)
    with pytest.raises(InputError, match="needs a solver"):
        Auto("dual", 0.2, 0.9, 1e-2, 1e-3, 5.0, 0.1, 0.7)  # pyright: ignore[reportArgumentType]


def test_a_step_that_a_fresh_batch_does_not_bear_out_is_taken_back():
    optimizer, state = auto(), auto().init(THETA)
    good, state, _ = take_step(optimizer, OBJECTIVE, THETA, state, key=KEY)
    bad = jax.tree.map(lambda leaf: leaf + 10.0, good)
    theta, after, info = take_step(optimizer, OBJECTIVE, bad, state, key=KEY)
    for found, wanted in zip(jax.tree.leaves(theta), jax.tree.leaves(THETA), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert float(after.damping) == pytest.approx(10 * float(state.damping))
    assert all(not leaf.any() for leaf in jax.tree.leaves(after.phi))
    assert float(info.details["step_size"]) == 0
    assert np.isfinite(float(info.loss))

    lost = jax.tree.map(lambda leaf: leaf * jnp.nan, good)
    theta, after, info = take_step(optimizer, OBJECTIVE, lost, state, key=KEY)
    assert np.isfinite(ravel_pytree((theta, after.damping, after.trend.fast))[0]).all()
    assert np.isfinite(float(info.loss))


def test_a_direction_fades_where_it_surprises_a_run_that_settles():
    """And a step of no length, after the end that was estimated, does nothing."""
    state = auto().init(THETA)._replace(step=jnp.array(40), is_settling=jnp.array(True))
    norms = {}
    for calm in (1e-6, 1e6):
        _, after, info = take_step(auto(calm=calm).until(50.0), OBJECTIVE, THETA, state, key=KEY)
        norms[calm] = float(jnp.linalg.norm(ravel_pytree(after.phi)[0]))
        assert float(info.details["step_size"]) > 0
    assert norms[1e-6] == pytest.approx(0.5 * norms[1e6])
    theta, after, info = take_step(auto().until(40.0), OBJECTIVE, THETA, state, key=KEY)
    np.testing.assert_array_equal(ravel_pytree(theta)[0], ravel_pytree(THETA)[0])
    assert float(info.details["surprise"]) == 0
    assert np.isfinite(ravel_pytree((after.phi, after.damping))[0]).all()


def test_a_trend_sees_through_noise():
    noise = np.random.default_rng(0)

    def follow(losses):
        trend, rising = Trend.start(), []
        for i, loss in enumerate(losses):
            trend = trend.follow(jnp.array(loss), jnp.array(float(i)))
            rising.append(bool(trend.is_rising))
        return trend, rising

    k = np.arange(1, 301)
    shaken = np.exp(0.2 * noise.standard_normal(300))
    falling, rising = follow(shaken / k**2)
    assert not any(rising[20:])
    assert not falling.is_jump(jnp.array(2.0 / 300**2), 10.0)
    assert falling.is_jump(jnp.array(20.0 / 300**2), 10.0)
    assert falling.is_jump(jnp.array(jnp.nan), 10.0)
    _, rising = follow(shaken * k)
    assert all(rising[20:])
    assert not Trend.start().is_jump(jnp.array(jnp.nan), 10.0)


def _follow(losses):
    trend = Trend.start()
    for i, loss in enumerate(losses):
        trend = trend.follow(jnp.array(float(loss)), jnp.array(float(i)))
    return trend


LOST = jax.tree.map(lambda leaf: leaf + 0.1, THETA)
LOSS = float(OBJECTIVE.loss(LOST))
LOW, HIGH = [1e-3 * LOSS] * 30, [LOSS] * 60
ASTRAY = _follow(HIGH[:9] + LOW + HIGH)
RECENT = _follow(HIGH + LOW + HIGH)
NAIVE = _follow([0.1 * LOSS] * 40 + [200 * LOSS] * 80)


def test_a_trend_knows_its_lowest_loss():
    assert _follow(HIGH[:9] + LOW).is_lowest
    assert not ASTRAY.is_lowest
    assert ASTRAY.is_above(10.0)
    assert ASTRAY.is_long_above(10.0)
    assert RECENT.is_above(10.0)
    assert not RECENT.is_long_above(10.0)
    assert not _follow(HIGH[:9] + LOW + [5e-3 * LOSS] * 60).is_long_above(10.0)
    assert ASTRAY.has_fallen(100.0)
    assert not NAIVE.has_fallen(100.0)
    assert NAIVE.is_long_above(10.0)
    assert not ASTRAY.forgiven(jnp.array(True)).is_above(10.0)
    assert ASTRAY.forgiven(jnp.array(False)).is_long_above(10.0)


@pytest.mark.parametrize(
    ("trend", "end", "was_settling", "goes_back", "heat"),
    [
        (ASTRAY, 500.0, False, True, 0.2),  # lost: back, and cooler
        (RECENT, 500.0, False, False, 1.0),  # hot, but not for long
        (RECENT, 50.0, False, True, 1.0),  # its search ends far above its lowest loss
        (ASTRAY, 50.0, True, False, 1.0),  # settles already
        (NAIVE, 500.0, False, False, 1.0),  # has learned nothing yet: its lowest loss says nothing
        (NAIVE, 50.0, False, False, 1.0),
    ],
)
def test_a_search_that_lost_its_way_goes_back(trend, end, was_settling, goes_back, heat):
    optimizer, fresh = auto().until(end), auto().init(THETA)
    state = fresh._replace(step=jnp.array(40), trend=trend, is_settling=jnp.array(was_settling))
    hot = state._replace(phi=THETA, bias=jnp.array(1.0), damping=jnp.array(1e-9))
    theta, after, info = take_step(optimizer, OBJECTIVE, LOST, hot, key=KEY)
    at = THETA if goes_back else LOST
    np.testing.assert_array_equal(ravel_pytree(after.before)[0], ravel_pytree(at)[0])
    assert float(info.details["heat"]) == heat
    assert heat <= float(after.heat) < 1.2 * heat
    begins = goes_back or (end < 100 and not was_settling)
    assert (float(after.damping) > 1e-6) == begins
    if goes_back:  # as if it began there
        begun = state._replace(trend=trend.forgiven(jnp.array(True)), heat=jnp.array(heat))
        begun_theta, _, _ = take_step(optimizer, OBJECTIVE, THETA, begun, key=KEY)
        np.testing.assert_array_equal(ravel_pytree(theta)[0], ravel_pytree(begun_theta)[0])


def test_a_run_without_an_end_searches_and_settles_in_cycles():
    """Until step 1000, 2000, 4000, …: in the last quarter of each it settles by shorter steps."""

    def at(step, was_settling=False):
        state = (
            auto().init(THETA)._replace(step=jnp.array(step), is_settling=jnp.array(was_settling))
        )
        _, after, info = take_step(auto(), OBJECTIVE, THETA, state, key=KEY)
        return bool(after.is_settling), float(info.details["step_size"])

    searching = [at(step)[0] for step in (0, 749, 1000, 1499, 2000, 2999, 4000)]
    settling = [at(step)[0] for step in (750, 999, 1500, 1999, 3000, 3999, 6000)]
    assert not any(searching)
    assert all(settling)
    assert at(999)[1] < 0.02 < at(750)[1]
    assert not at(1000, was_settling=True)[0]  # it searches again


def test_the_lowest_loss_of_a_search_is_remembered():
    optimizer = auto().until(1e6)
    theta, state = THETA, optimizer.init(THETA)
    for _ in range(3):
        at, (theta, state, _) = theta, take_step(optimizer, OBJECTIVE, theta, state, key=KEY)
        assert bool(state.trend.is_lowest)  # on one batch the loss falls
        np.testing.assert_array_equal(ravel_pytree(state.best)[0], ravel_pytree(at)[0])
    worse = jax.tree.map(lambda leaf: leaf + 3.0, theta)
    _, after, _ = take_step(optimizer, OBJECTIVE, worse, state, key=KEY)
    assert not bool(after.trend.is_lowest)
    np.testing.assert_array_equal(ravel_pytree(after.best)[0], ravel_pytree(state.best)[0])


def test_a_cooler_search_wants_more_damping():
    dampings = []
    for heat in (1.0, 0.2):
        before = auto().init(THETA)._replace(heat=jnp.array(heat))
        _, after, _ = take_step(auto().until(500.0), OBJECTIVE, THETA, before, key=KEY)
        dampings.append(float(after.damping))
    assert dampings[1] > dampings[0]


def test_a_cooled_search_warms_up_again():
    """In some tenths of its steps so far; losses of this time do not count for the lowest."""
    optimizer = auto().until(1e6)
    cool = auto().init(THETA)._replace(heat=jnp.array(0.2))
    theta, state, heats = THETA, cool, []
    for _ in range(30):
        theta, state, _ = take_step(optimizer, OBJECTIVE, theta, state, key=KEY)
        heats.append(float(state.heat))
    assert all(np.diff(heats) > 0)
    assert heats[0] < 0.25
    assert heats[-1] > 0.8
    low = 1e-30 * float(OBJECTIVE.loss(THETA))
    trend = ASTRAY
    cold = trend.follow(jnp.array(low), jnp.array(0.0), jnp.array(False))
    assert float(cold.lowest) == float(trend.lowest)
    assert trend.follow(jnp.array(low), jnp.array(0.0)).is_lowest


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped():
    whole = run(auto(), steps=30)
    one_per_call = {"steps": 30, "seconds_per_call": 0.0}
    first = run(auto(), **one_per_call, callbacks=[lambda progress: progress.step >= 12])
    rest = run(auto(), **one_per_call, resume=first.snapshot, history=first.history)
    one, other = (ravel_pytree(r.state.theta)[0] for r in (whole, rest))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("surprise", 0, "surprise must be above 0"),
        ("forgetting", -1, "forgetting must be above 0"),
        ("settle_from", 1, "settle_from must be at least 0 and below 1"),
        ("calm", 0, "calm must be above 0"),
        ("least_damping", 0, "least_damping must be above 0"),
        ("learning_rate", "fast", "learning_rate must be a number"),
    ],
)
def test_wrong_settings_say_why(setting, value, message):
    with pytest.raises(InputError, match=message):
        auto(**{setting: value})
