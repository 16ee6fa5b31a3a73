"""A nonlinear PDE of your own: Burgers' equation with a shock, against the Cole–Hopf solution.

u_t + u u_x = ν u_xx on [0, 1] × [−1, 1], u(0, x) = −sin(πx), u(t, ±1) = 0, ν = 0.01/π.
"""

import jax.numpy as jnp
import numpy as np

from natpinn import Box, Condition, Focused, Problem, Sobol, Solution, TimeSpace, partial, solve

NU = 0.01 / jnp.pi
NODES, WEIGHTS = np.polynomial.hermite.hermgauss(100)


def cole_hopf(tx):
    """The exact solution, a ratio of two Gaussian averages."""
    t, x = tx
    y = x - jnp.sqrt(4 * NU * t) * NODES
    exponent = -jnp.cos(jnp.pi * y) / (2 * jnp.pi * NU)
    density = WEIGHTS * jnp.exp(exponent - exponent.max())
    return -jnp.sum(density * jnp.sin(jnp.pi * y)) / jnp.sum(density)


def burgers(u, tx):
    u_t, u_x, u_xx = (partial(u, *order)(tx) for order in ([0], [1], [1, 1]))
    return u_t + u(tx) * u_x - NU * u_xx


slab = TimeSpace(0, 1, Box([-1], [1]))
problem = Problem(
    {
        "interior": Condition(burgers, slab, sampler=Focused(Sobol())),
        "initial": Condition(
            lambda u, tx: u(tx) + jnp.sin(jnp.pi * tx[1]), slab.initial, weight=10
        ),
        "boundary": Condition(lambda u, tx: u(tx), slab.boundary, weight=10),
    },
    solution=cole_hopf,
    name="burgers",
)


def main(steps: int = 400, **options) -> Solution:
    return solve(problem, steps=steps, **options)


if __name__ == "__main__":
    solution = main()
    print(f"relative L2 error {solution.summary['relative_l2']:.2e}")
    solution.plot("burgers.png")
