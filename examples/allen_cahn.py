"""Sharp fronts: u_t = 10⁻⁴ u_xx + 5u − 5u³ on [0, 1] × [−1, 1], periodic, u(0, x) = x² cos(πx).

The network is periodic by construction. The reference is a Fourier series in x.
"""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

from natpinn import MLP, Box, Condition, Periodic, Problem, Solution, TimeSpace, partial, solve

WAVES, TIMES = np.fft.fftfreq(512, 1 / 512), np.linspace(0, 1, 2001)


def start(x):
    return x**2 * jnp.cos(jnp.pi * x)


def rate(_, u):
    u_xx = np.fft.ifft(-((np.pi * WAVES) ** 2) * np.fft.fft(u)).real
    return 1e-4 * u_xx + 5 * u - 5 * u**3


nodes = np.arange(512) / 256 - 1
found = solve_ivp(rate, (0, 1), start(nodes), "DOP853", TIMES, rtol=1e-9, atol=1e-9).y
series = jnp.asarray(np.fft.fft(found.T) / 512)


def reference(tx):
    i = jnp.clip(jnp.floor(tx[0] / TIMES[1]), 0, len(TIMES) - 2).astype(int)
    now = series[i] + (tx[0] / TIMES[1] - i) * (series[i + 1] - series[i])
    return jnp.sum(now * jnp.exp(1j * jnp.pi * WAVES * (tx[1] + 1))).real


def allen_cahn(u, tx):
    return partial(u, 0)(tx) - 1e-4 * partial(u, 1, 1)(tx) - 5 * u(tx) + 5 * u(tx) ** 3


slab = TimeSpace(0, 1, Box([-1], [1]))
equation = Condition(allen_cahn, slab)
at_start = Condition(lambda u, tx: u(tx) - start(tx[1]), slab.initial)
problem = Problem({"equation": equation, "start": at_start}, reference, name="allen_cahn")


def model(key):
    return MLP(2, (32, 32, 32), key=key, embedding=Periodic((0, 2)))


def main(steps: int = 2000, **options) -> Solution:
    return solve(problem, model(jax.random.key(0)), steps=steps, **options)


if __name__ == "__main__":
    solution = main()
    print(f"relative L2 error {solution.summary['best_relative_l2']:.2e}")
    solution.plot("allen_cahn.png")
