"""natpinn agrees with an independent implementation of the paper."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden import PROBLEMS, Golden
from jax.flatten_util import ravel_pytree

from natpinn import engd_w, spring

TRAJECTORIES = {
    "engd_w": engd_w(damping=1e-3, learning_rate=0.1),
    "spring_free": spring(damping=1e-3, momentum=0.9, learning_rate=0.1, norm_cap=None),
    "spring_capped": spring(damping=1e-3, momentum=0.9, learning_rate=0.1, norm_cap=1e-3),
}


@pytest.fixture(scope="module", params=PROBLEMS)
def golden(request):
    return Golden(request.param)


def test_residuals_losses_and_kernel_agree(golden):
    evaluate = eqx.filter_jit(lambda objective, theta: objective.linearize(theta))
    linearization = evaluate(golden.objective, golden.theta)
    interior, condition = golden.numbers["interior_residual"], golden.numbers["condition_residual"]
    scaled = np.concatenate([interior / len(interior) ** 0.5, condition / len(condition) ** 0.5])
    np.testing.assert_allclose(linearization.residual, scaled, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        golden.objective.residual(golden.theta), scaled, rtol=1e-12, atol=1e-12
    )

    kernel = golden.numbers["kernel"]
    np.testing.assert_allclose(linearization.kernel(), kernel, atol=1e-12 * np.abs(kernel).max())

    losses = golden.objective.losses(golden.theta)
    np.testing.assert_allclose(losses.pop("interior"), golden.numbers["interior_loss"], rtol=1e-12)
    np.testing.assert_allclose(sum(losses.values()), golden.numbers["condition_loss"], rtol=1e-12)


def test_rows_know_their_condition(golden):
    linearization = eqx.filter_jit(golden.objective.linearize)(golden.theta)
    assert list(linearization.rows) == list(golden.problem.conditions)
    for name, loss in golden.objective.losses(golden.theta).items():
        rows = linearization.residual[linearization.rows[name]]
        np.testing.assert_allclose(0.5 * jnp.sum(rows**2), loss, rtol=1e-12)


@pytest.mark.parametrize("name", TRAJECTORIES)
def test_trajectories_agree(golden, name):
    optimizer, wanted = TRAJECTORIES[name], golden.numbers[f"{name}_theta"]
    step = eqx.filter_jit(
        lambda theta, state: optimizer.step(golden.objective, theta, state, key=jax.random.key(0))
    )
    theta, state = golden.theta, optimizer.init(golden.theta)
    for reference in wanted[1:]:
        theta, state, _ = step(theta, state)
        found = ravel_pytree(theta)[0]
        assert np.linalg.norm(found - reference) <= 1e-8 * np.linalg.norm(reference)
