"""A system: steady Navier–Stokes flow behind a grid, against Kovasznay's solution.

(w·∇)w + ∇p = Δw / Re and ∇·w = 0, for the velocity w = (u, v) and the pressure p, Re = 40.
"""

import jax.numpy as jnp

from natpinn import Box, Condition, Problem, Solution, solve, value_gradient_laplacian

RE = 40.0
LAMBDA = RE / 2 - (RE**2 / 4 + 4 * jnp.pi**2) ** 0.5


def kovasznay(x):
    decay, angle = jnp.exp(LAMBDA * x[0]), 2 * jnp.pi * x[1]
    return jnp.stack(
        [
            1 - decay * jnp.cos(angle),
            LAMBDA / (2 * jnp.pi) * decay * jnp.sin(angle),
            0.5 * (1 - decay**2),
        ]
    )


def navier_stokes(flow, x):
    (u, v, _), slopes, (lap_u, lap_v, _) = value_gradient_laplacian(flow)(x)
    (u_x, u_y), (v_x, v_y), (p_x, p_y) = slopes
    return jnp.stack(
        [
            u * u_x + v * u_y + p_x - lap_u / RE,
            u * v_x + v * v_y + p_y - lap_v / RE,
            u_x + v_y,
        ]
    )


box = Box([-0.5, -0.5], [1.0, 1.5])
problem = Problem(
    {
        "flow": Condition(navier_stokes, box),
        "boundary": Condition(lambda flow, x: flow(x) - kovasznay(x), box.boundary),
    },
    solution=kovasznay,
    name="kovasznay",
)


def main(steps: int = 300, **options) -> Solution:
    return solve(problem, steps=steps, **options)


if __name__ == "__main__":
    solution = main()
    print(f"relative L2 error {solution.summary['relative_l2']:.2e}")
    solution.plot("kovasznay.png")
