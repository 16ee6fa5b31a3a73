"""A nonlinear wave: u_tt − u_xx + u³ = f on [0, 1]², with the value and the speed at the start.

The solution x cos(5πt) + (xt)³ is manufactured, and f found from it by differentiation.
"""

import jax.numpy as jnp

from natpinn import Box, Condition, Problem, Solution, TimeSpace, partial, solve


def exact(tx):
    t, x = tx
    return x * jnp.cos(5 * jnp.pi * t) + (x * t) ** 3


def left_side(u, tx):
    return partial(u, 0, 0)(tx) - partial(u, 1, 1)(tx) + u(tx) ** 3


slab = TimeSpace(0, 1, Box([0], [1]))
problem = Problem(
    {
        "wave": Condition(lambda u, tx: left_side(u, tx) - left_side(exact, tx), slab),
        "ends": Condition(lambda u, tx: u(tx) - exact(tx), slab.boundary),
        "value": Condition(lambda u, tx: u(tx) - exact(tx), slab.initial),
        "speed": Condition(lambda u, tx: partial(u, 0)(tx), slab.initial),
    },
    solution=exact,
    name="klein_gordon",
)


def main(steps: int = 2000, **options) -> Solution:
    return solve(problem, steps=steps, **options)


if __name__ == "__main__":
    solution = main()
    print(f"relative L2 error {solution.summary['relative_l2']:.2e}")
    solution.plot("klein_gordon.png")
