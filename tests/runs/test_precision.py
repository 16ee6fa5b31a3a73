"""Runs in float32: everything is computed in it, and said so."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from natpinn import (
    Box,
    Condition,
    InputError,
    Problem,
    engd,
    laplacian,
    load,
    problems,
    resume,
    solve,
)
from natpinn.optimizers.presets import auto
from natpinn.precision import computing, digits, real

SMALL = problems.get("poisson_2d", points={"interior": 60, "boundary": 30}, widths=(12, 12))


def kinds(tree):
    return {str(leaf.dtype) for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype")}


def test_a_run_in_float32_is_whole_and_goes_on(tmp_path):
    folder = tmp_path / "run"
    solution = solve(SMALL, steps=120, precision="float32", progress=False, out=folder)
    assert kinds(solution.model) == {"float32"}
    assert 1e-7 < solution.summary["relative_l2"] < 1e-2
    assert solution.summary["precision"] == solution.config["compute"]["precision"] == "float32"
    assert json.loads((folder / "summary.json").read_text())["precision"] == "float32"
    loaded = load(folder, problem=SMALL)
    assert kinds(loaded.model) == {"float32"}
    point = np.array([0.3, 0.6])
    assert float(loaded(point)) == float(solution(point))
    again = resume(folder, SMALL, steps=130, progress=False)
    assert kinds(again.model) == {"float32"}
    assert again.summary["steps"] == 130
    assert jnp.zeros(1).dtype == np.float64  # outside, nothing has changed


def test_float64_is_what_a_run_has_otherwise():
    solution = solve(SMALL, optimizer=engd(), steps=2, progress=False)
    assert kinds(solution.model) == {"float64"}
    assert solution.summary["precision"] == "float64"


def test_dampings_reach_as_deep_as_the_precision():
    with computing("float32"):
        rule = auto().until(600.0)
        least = float(rule._floor(jnp.array(5)))
        few = float(auto().until(100.0)._floor(jnp.array(5)))
        eps = float(jnp.finfo(real()).eps)
    share = np.log(eps) / np.log(np.finfo(np.float64).eps)
    assert least == pytest.approx(1e-28**share, rel=1e-3, abs=0)
    assert 4 * eps < few < 6 * eps
    assert digits() == 1


def test_models_of_float32_need_a_run_of_float32():
    model = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if hasattr(leaf, "astype") else leaf,
        SMALL.default_model(jax.random.key(0)),
    )
    with pytest.raises(InputError, match=r"must be float64, got float32.*precision = float32"):
        solve(SMALL, model, steps=2, progress=False)
    assert kinds(solve(SMALL, model, steps=2, precision="float32", progress=False).model) == {
        "float32"
    }


def test_a_residual_of_another_type_says_so():
    square = Box.unit(2)
    mixed = Problem(
        {"all": Condition(lambda u, x: laplacian(u)(x).astype(jnp.float16), square, points=5)}
    )
    with pytest.raises(InputError, match="must return float32, got float16"):
        solve(mixed, steps=2, precision="float32", progress=False)


def test_an_unknown_precision_is_refused():
    with pytest.raises(InputError, match=r"float23.*did you mean 'float32'"):
        solve(SMALL, steps=2, precision="float23", progress=False)
