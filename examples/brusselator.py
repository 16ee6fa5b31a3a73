"""A stiff system: the Brusselator, whose species react fast and diffuse slowly.

u_t = 1 + u²v − 4u + u_xx/50, v_t = 3u − u²v + v_xx/50; u = 1, v = 3 at both ends. By sine series.
"""

import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

from natpinn import Box, Condition, Problem, Solution, TimeSpace, partial, solve

MODES, TIMES, REST = np.arange(1, 64), np.linspace(0, 10, 4001), jnp.array([1.0, 3.0])
SINES = np.sin(np.pi * np.outer(MODES, MODES) / 64)


def reaction(u, v):
    return 1 + u**2 * v - 4 * u, 3 * u - u**2 * v


def rate(_, flat):
    w = flat.reshape(2, -1)  # what u and v are above their values at rest
    w_xx = -((np.pi * MODES) ** 2) * (w @ SINES) @ SINES / 32
    return (np.stack(reaction(1 + w[0], 3 + w[1])) + w_xx / 50).ravel()


begin = np.outer([1, 0], SINES[1]).ravel()
found = solve_ivp(rate, (0, 10), begin, "BDF", TIMES, rtol=1e-9, atol=1e-9).y
series = jnp.asarray(found.T.reshape(-1, 2, 63) @ SINES / 32)


def reference(tx):
    i = jnp.clip(jnp.floor(tx[0] / TIMES[1]), 0, len(TIMES) - 2).astype(int)
    now = series[i] + (tx[0] / TIMES[1] - i) * (series[i + 1] - series[i])
    return REST + now @ jnp.sin(jnp.pi * MODES * tx[1])


def brusselator(w, tx):
    return partial(w, 0)(tx) - jnp.stack(reaction(*w(tx))) - partial(w, 1, 1)(tx) / 50


def start(w, tx):
    return w(tx) - REST - jnp.stack([jnp.sin(2 * jnp.pi * tx[1]), 0.0])


slab = TimeSpace(0, 10, Box([0], [1]))
at_ends = Condition(lambda w, tx: w(tx) - REST, slab.boundary)
inside, at_start = Condition(brusselator, slab), Condition(start, slab.initial)
everywhere = {"reaction": inside, "ends": at_ends, "start": at_start}
problem = Problem(everywhere, reference, name="brusselator")


def main(steps: int = 2000, **options) -> Solution:
    return solve(problem, steps=steps, **options)


if __name__ == "__main__":
    solution = main()
    print(f"relative L2 error {solution.summary['relative_l2']:.2e}")
    solution.plot("brusselator.png")
