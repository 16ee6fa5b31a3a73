"""References are a hundred times better than the errors that are measured with them."""

import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

EXAMPLES = Path(__file__).parent.parent / "examples"


def relative(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


def test_the_pendulum_follows_its_equation_to_thirteen_digits():
    """Errors of 1e-11 are measured with it; here it is compared with Runge-Kutta."""
    example = runpy.run_path(str(EXAMPLES / "pendulum.py"))
    times = np.linspace(0, example["END"], 501)

    def rate(t, y):
        return [y[1], -np.sin(y[0])]

    span, start = (0, example["END"]), [example["START"], 0.0]
    found = solve_ivp(rate, span, start, "DOP853", times, rtol=1e-13, atol=1e-15).y[0]
    assert relative(example["exact"]([times]), found) < 1e-13


def test_allen_cahn_does_not_change_with_more_modes():
    """Errors of 1e-5 are measured with it. Of m modes the error falls as m to the power of -5/2:
    what half of the modes change is six times the error of all of them."""
    example = runpy.run_path(str(EXAMPLES / "allen_cahn.py"))
    half = example["cosines"](1280)
    random = np.random.default_rng(0)
    points = jnp.asarray(np.stack([random.uniform(size=2000), random.uniform(-1, 1, 2000)], 1))
    at_all = jax.jit(jax.vmap(lambda x: (example["reference"](x), example["reference"](x, half))))
    assert relative(*at_all(points)) < 6e-7
    at_start = jnp.stack([jnp.zeros(100), jnp.linspace(-0.9, 0.9, 100)], 1)
    start, _ = at_all(at_start)
    assert relative(start, example["start"](at_start[:, 1])) < 1e-6
