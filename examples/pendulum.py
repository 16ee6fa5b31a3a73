"""An ODE: a pendulum that swings far, θ'' = −sin θ, θ(0) = 2, θ'(0) = 0, against Runge–Kutta."""

import jax.numpy as jnp
from scipy.integrate import solve_ivp

from natpinn import Box, Condition, Data, Problem, Solution, partial, solve

START, END = 2.0, 10.0
time = Box([0], [END])
at_start = Data([[0.0]], [START])
reference = solve_ivp(
    lambda t, y: [y[1], -jnp.sin(y[0])],
    (0, END),
    [START, 0.0],
    t_eval=jnp.linspace(0, END, 50_001),
    rtol=1e-12,
    atol=1e-12,
)


def exact(t):
    return jnp.interp(t[0], reference.t, reference.y[0])


problem = Problem(
    {
        "pendulum": Condition(lambda u, t: partial(u, 0, 0)(t) + jnp.sin(u(t)), time, points=200),
        "angle": Condition(lambda u, point: u(point[0]) - point[1], at_start, weight=100),
        "speed": Condition(lambda u, point: partial(u, 0)(point[0]), at_start, weight=100),
    },
    solution=exact,
    name="pendulum",
    names="t -> angle",
    widths=(30, 30),
)


def main(steps: int = 600, **options) -> Solution:
    return solve(problem, steps=steps, **options)


if __name__ == "__main__":
    solution = main()
    print(f"relative L2 error {solution.summary['best_relative_l2']:.2e}")
    solution.plot("pendulum.png")
