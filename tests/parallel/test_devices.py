"""Many devices, and many processes, take the steps of one."""

import json
import os
import socket
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import natpinn
from natpinn import InputError, hessian_free, kfac, spring, train
from natpinn.parallel import processes as cluster
from natpinn.parallel.devices import make_mesh
from natpinn.parallel.plan import Plan

KEY = jax.random.key(0)
POINTS = {"interior": 37, "boundary": 13}  # neither divides by eight


def setup(points, widths=(20, 20)):
    problem = natpinn.problems.get("poisson_2d").with_points(points)
    model = problem.default_model(KEY, widths)
    return *problem.objective(model, problem.sample(KEY)), problem.evaluation(model, KEY)


@pytest.mark.parametrize(
    ("optimizer", "held"),
    [
        (spring(damping=0.1), True),
        (spring(damping=0.1), False),
        (kfac(1e-3), True),
        (hessian_free(most_iterations=4), True),
    ],
    ids=["spring, held", "spring, streamed", "kfac", "hessian_free"],
)
def test_eight_devices_take_the_steps_of_one(optimizer, held):
    objective, theta, evaluation = setup(POINTS)
    sharded = Plan(held, None if held else 16, mesh=make_mesh(8))
    ends = []
    for plan in (Plan(), sharded):
        result = train(
            objective.planned(plan),
            theta,
            optimizer,
            evaluation.planned(plan),
            key=KEY,
            steps=20,
        )
        ends.append((ravel_pytree(result.state.theta)[0], result.history))
    (one, alone), (other, together) = ends
    moved = jnp.linalg.norm(one - ravel_pytree(theta)[0])
    assert float(jnp.linalg.norm(other - one) / moved) < 1e-9
    for a, b in zip(alone, together, strict=True):
        assert b["l2"] == pytest.approx(a["l2"], rel=1e-9)


def test_each_device_holds_its_share_of_the_jacobian():
    objective, theta, _ = setup({"interior": 64, "boundary": 16}, (300, 300))
    objective = objective.planned(Plan(mesh=make_mesh(8)))
    jacobian = eqx.filter_jit(lambda o, t: o.linearize(t).jacobian)(objective, theta)
    for leaf in jax.tree.leaves(jacobian):
        assert leaf.addressable_shards[0].data.nbytes * 8 == leaf.nbytes


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(tmp_path):
    command = [sys.executable, "-m", "natpinn", "solve", "poisson_2d", "--optimizer", "spring"]
    command += ["--steps", "20", "--set", "optimizer.damping=0.1", "--set", "points.interior=37"]
    command += ["--set", "points.boundary=13", "--set", "evaluation.points=100"]
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    alone = subprocess.run([*command, "--out", str(tmp_path / "alone")], env=environment)
    assert alone.returncode == 0

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    environment |= {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2"}
    processes = [
        subprocess.Popen(
            [*command, "--devices", "all", "--out", str(tmp_path / "together")],
            env={**environment, "JAX_PROCESS_ID": str(i)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    first, second = (process.communicate(timeout=200)[0] for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert "finished: 20 steps" in first
    assert "finished" not in second
    summary = json.loads((tmp_path / "together" / "summary.json").read_text())
    assert summary["devices"] == 4
    one, other = (natpinn.load(tmp_path / name) for name in ("alone", "together"))
    x = np.linspace(0.1, 0.9, 10).reshape(5, 2)
    np.testing.assert_allclose(other(x), one(x), rtol=1e-9)
    for a, b in zip(one.history, other.history, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-9)


@pytest.mark.parametrize(
    ("devices", "message"),
    [(9, "8 are there"), (0, "must be a number"), ("some", "must be a number")],
)
def test_devices_that_are_not_there_are_explained(devices, message):
    with pytest.raises(InputError, match=message):
        make_mesh(devices)


def test_a_process_needs_to_know_its_number(monkeypatch):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("JAX_NUM_PROCESSES", "two")
    with pytest.raises(InputError, match="JAX_NUM_PROCESSES must be a number, got 'two'"):
        cluster.join()
