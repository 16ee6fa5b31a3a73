"""The spectrum of the kernel, tracked during training."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import natpinn
from natpinn import InputError, engd_w
from natpinn.parallel.devices import make_mesh
from natpinn.parallel.plan import Plan
from natpinn.training.spectrum import effective_dimension, kernel_spectrum
from natpinn.training.steps import Batches, start

KEY = jax.random.key(0)


@pytest.mark.parametrize("damping", [1e-3, 1.0])
def test_the_effective_dimension_is_a_trace(damping):
    J = jax.random.normal(KEY, (9, 7))  # K has two eigenvalues that are round-off
    K = J @ J.T
    wanted = jnp.trace(jnp.linalg.solve(K + damping * jnp.eye(len(K)), K))
    eigenvalues = jnp.linalg.eigvalsh(K)
    found = effective_dimension(eigenvalues, jnp.array(damping))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_the_spectrum_is_tracked_during_training(tmp_path):
    sizes = {"interior": 20, "boundary": 10}
    problem = natpinn.problems.get("poisson_2d", points=sizes, widths=(6,)).with_held_points()
    options: dict[str, Any] = {"optimizer": natpinn.engd_w(1e-3), "steps": 12, "progress": False}
    names = ["effective_dimension", "condition_number", "largest_eigenvalue", "smallest_eigenvalue"]
    reached: dict[float, Any] = {}
    tracked = natpinn.solve(
        problem,
        track=names,
        callbacks=[lambda now: reached.update({now.step: ravel_pytree(now.state.theta)[0]})],
        **options,
    )
    plain = natpinn.solve(problem, **options)
    assert [r["l2"] for r in tracked.history] == [r["l2"] for r in plain.history]
    assert tracked.summary["tracking_seconds"] > 0 == plain.summary["tracking_seconds"]
    for record in tracked.history[1:]:
        assert 0 < record["effective_dimension"] < 30
        assert record["condition_number"] <= record["largest_eigenvalue"] / 1e-3 + 1.001
    objective, theta = problem.objective(problem.default_model(KEY), problem.sample(KEY))
    dense = jax.jit(jax.jacrev(lambda flat: objective.residual(ravel_pytree(theta)[1](flat))))
    for record in tracked.history[1:]:
        jacobian = dense(reached[record["step"]])
        values = np.linalg.eigvalsh(jacobian @ jacobian.T).clip(0)
        low, high = values[0], values[-1]
        dimension, condition = (values / (values + 1e-3)).sum(), (high + 1e-3) / (low + 1e-3)
        found, wanted = [record[name] for name in names], [dimension, condition, high, low]
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12 * high)
    with pytest.raises(InputError, match="effective_dimension"):
        natpinn.solve(problem, track=["efective_dimension"], **options)
    options["optimizer"] = natpinn.adam()
    with pytest.raises(InputError, match="with a damping"):
        natpinn.solve(problem, track=names, **options)

    tracked.save(tmp_path / "run")
    damped = natpinn.engd_w(1e-3)
    longer = natpinn.resume(tmp_path / "run", problem, optimizer=damped, steps=16, progress=False)
    assert longer.history[-1]["effective_dimension"] > 0
    assert longer.summary["tracking_seconds"] > tracked.summary["tracking_seconds"]


def test_padding_has_no_part_in_the_spectrum():
    points = {"interior": 37, "boundary": 13}  # neither divides by eight
    problem = natpinn.problems.get("poisson_2d").with_points(points)
    objective, theta = problem.objective(problem.default_model(KEY, (20, 20)), problem.sample(KEY))
    alone, together = (
        kernel_spectrum(Batches(objective.planned(plan)), start(engd_w(), theta, KEY))
        for plan in (Plan(), Plan(mesh=make_mesh(8)))
    )
    assert len(together) == sum(points.values())
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-12 * float(alone[-1]))
