"""An indefinite operator: a wave of number 4π in a box, Δu + k²u = f with u = 0 on the boundary.

The solution sin(kx) sin(ky) has four hills and hollows in each direction.
"""

import jax.numpy as jnp

from natpinn import Box, Condition, Problem, Solution, laplacian, solve

K = 4 * jnp.pi


def exact(x):
    return jnp.sin(K * x[0]) * jnp.sin(K * x[1])


square = Box.unit(2)
problem = Problem(
    {
        "wave": Condition(lambda u, x: laplacian(u)(x) + K**2 * (u(x) + exact(x)), square),
        "edge": Condition(lambda u, x: u(x), square.boundary),
    },
    solution=exact,
    name="helmholtz",
)


def main(steps: int = 2000, **options) -> Solution:
    return solve(problem, steps=steps, **options)


if __name__ == "__main__":
    solution = main()
    print(f"relative L2 error {solution.summary['relative_l2']:.2e}")
    solution.plot("helmholtz.png")
