"""Which points a step sees."""

import jax
import jax.numpy as jnp
import numpy as np

from natpinn import Box, Condition, Problem, adam, auto, laplacian, train
from natpinn.training.steps import Batches, start

KEY = jax.random.key(0)


def test_points_without_a_residual_are_not_the_fault_of_a_step():
    def residual(u, x):
        return jnp.where(x[0] < 0.02, jnp.nan, u(x))

    condition = Condition(residual, Box.unit(2), points=20)
    problem = Problem({"interior": condition}, lambda x: jnp.array(0.0), widths=(4,))
    model = problem.default_model(KEY)
    objective, theta = problem.objective(model, problem.sample(KEY))
    result = train(objective, theta, auto(), problem.evaluation(model, KEY), key=KEY, steps=60)
    states = [result.state._replace(step=jnp.array(step)) for step in range(60)]
    drawn = [Batches(objective).at(state)[0].points["interior"] for state in states]
    bad = sum(bool((points[:, 0] < 0.02).any()) for points in drawn)
    assert 5 < int(result.state.events.rejected) == bad < 40
    assert int(result.state.optimizer.step) == 60
    assert bool(result.state.optimizer.is_settling)
    assert result.history[-1]["l2"] < 1e-2 * result.history[0]["l2"]


def test_a_batch_is_held_for_so_many_steps():
    condition = Condition(lambda u, x: laplacian(u)(x), Box.unit(2), points=8)
    problem = Problem({"interior": condition}, widths=(4,))
    objective, theta = problem.objective(problem.default_model(KEY), problem.sample(KEY))
    state = start(adam(), theta, KEY)
    batches = Batches(objective, 3)

    def points(step):
        batch, key = batches.at(state._replace(step=jnp.array(step)))
        return np.asarray(batch.points["interior"]), np.asarray(jax.random.key_data(key))

    seen = [points(step) for step in range(6)]
    assert all((seen[0][0] == seen[i][0]).all() for i in (1, 2))
    assert (seen[2][0] != seen[3][0]).any()
    assert all((seen[3][0] == seen[i][0]).all() for i in (4, 5))
    assert len({tuple(key) for _, key in seen}) == 6  # optimizers get a key of their own
