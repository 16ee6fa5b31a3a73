"""Sharp fronts: u_t = 10⁻⁴ u_xx + 5u − 5u³ on [0, 1] × [−1, 1], periodic, u(0, x) = x² cos(πx)."""

import jax.numpy as jnp
import numpy as np
from scipy import fft, integrate

from natpinn import Box, Condition, Periodic, Problem, Solution, TimeSpace, partial, solve

ROOTS = np.linspace(0, 1, 201)  # √t, in which the solution is smooth: the start has a kink


def start(x):
    return x**2 * jnp.cos(jnp.pi * x)


def cosines(modes):  # the coefficients at each √t, and their derivatives by it
    k, ends = np.arange(modes + 1), np.array([2] + [1] * (modes - 1) + [2])

    def rate(_, a):
        u = np.asarray(fft.dct(a * ends / 2, 1))
        return -1e-4 * (np.pi * k) ** 2 * a + fft.dct(5 * u - 5 * u**3, 1) / modes / ends

    fine = {"rtol": 1e-11, "atol": 1e-11, "max_step": 5e4 / (np.pi * modes) ** 2}
    first = fft.dct(np.asarray(start(k / modes)), 1) / modes / ends
    found = integrate.solve_ivp(rate, (0, 1), first, "DOP853", ROOTS**2, **fine).y.T
    return jnp.asarray([(a, 2 * root * rate(0, a)) for a, root in zip(found, ROOTS, strict=True)])


def reference(tx, series=cosines(2560)):
    i = jnp.clip(jnp.sqrt(tx[0]) / ROOTS[1], 0, len(ROOTS) - 2).astype(int)
    (old, slope), (new, end), s = series[i], series[i + 1], jnp.sqrt(tx[0]) / ROOTS[1] - i
    ahead = ROOTS[1] * s * (1 - s) * ((1 - s) * slope - s * end)
    now = (1 + 2 * s) * (1 - s) ** 2 * old + s**2 * (3 - 2 * s) * new + ahead
    return now @ jnp.cos(jnp.pi * jnp.arange(len(now)) * tx[1])


def allen_cahn(u, tx):
    return partial(u, 0)(tx) - 1e-4 * partial(u, 1, 1)(tx) - 5 * u(tx) + 5 * u(tx) ** 3


slab = TimeSpace(0, 1, Box([-1], [1]))
conditions = {"equation": Condition(allen_cahn, slab)}
conditions["start"] = Condition(lambda u, tx: u(tx) - start(tx[1]), slab.initial)
problem = Problem(conditions, reference, name="allen_cahn", embedding=Periodic((0, 2)))


def main(steps: int = 2000, **options) -> Solution:
    return solve(problem, steps=steps, **options)


if __name__ == "__main__":
    solution = main()
    print(f"relative L2 error {solution.summary['relative_l2']:.2e}")
    solution.plot("allen_cahn.png")
