"""An ODE: a pendulum that swings far, θ'' = −sin θ, θ(0) = 2, θ'(0) = 0.

The exact solution is θ = 2 arcsin(k cn(t)/dn(t)) with Jacobi's elliptic functions of the modulus
k = sin(θ(0)/2), here as a Chebyshev series.
"""

import jax.numpy as jnp
import numpy as np
from numpy.polynomial import chebyshev
from scipy.special import ellipj

from natpinn import Box, Condition, Data, Problem, Solution, partial, solve

START, END = 2.0, 10.0
time = Box([0], [END])
at_start = Data([[0.0]], [START])


def elliptic(t):
    k = np.sin(START / 2)
    _, cn, dn, _ = ellipj(t, k**2)
    return 2 * np.arcsin(k * cn / dn)


SERIES = chebyshev.chebinterpolate(lambda s: elliptic((s + 1) * END / 2), 100)


def exact(t):
    return chebyshev.chebval(2 * t[0] / END - 1, SERIES)


problem = Problem(
    {
        "pendulum": Condition(lambda u, t: partial(u, 0, 0)(t) + jnp.sin(u(t)), time),
        "angle": Condition(lambda u, point: u(point[0]) - point[1], at_start, weight=100),
        "speed": Condition(lambda u, point: partial(u, 0)(point[0]), at_start, weight=100),
    },
    solution=exact,
    name="pendulum",
    names="t -> angle",
)


def main(steps: int = 600, **options) -> Solution:
    return solve(problem, steps=steps, **options)


if __name__ == "__main__":
    solution = main()
    print(f"relative L2 error {solution.summary['relative_l2']:.2e}")
    solution.plot("pendulum.png")
