"""An inverse problem for a field: a conductivity from 200 temperatures, ∇·(a∇u) = f.

The network has two values, u and a; both are known on the boundary.
"""

import jax.numpy as jnp
import numpy as np

from natpinn import Box, Condition, Data, Problem, Solution, divergence, jacobian, solve


def exact(x):
    u = jnp.sin(jnp.pi * x[0]) + jnp.sin(jnp.pi * x[1])
    a = 1 + 0.5 * jnp.sin(2 * jnp.pi * x[0]) * jnp.sin(2 * jnp.pi * x[1])
    return jnp.stack([u, a])


def heating(w, x):
    return divergence(lambda y: w(y)[1] * jacobian(w)(y)[0])(x)


square = Box.unit(2)
places = np.random.default_rng(0).uniform(size=(200, 2))
measured = np.array([exact(x)[0] for x in places])
problem = Problem(
    {
        "heat": Condition(lambda w, x: heating(w, x) - heating(exact, x), square),
        "edge": Condition(lambda w, x: w(x) - exact(x), square.boundary),
        "data": Condition(lambda w, point: w(point[0])[0] - point[1], Data(places, measured)),
    },
    solution=exact,
    name="conductivity",
)


def main(steps: int = 2000, **options) -> Solution:
    return solve(problem, steps=steps, **options)


if __name__ == "__main__":
    solution = main()
    print(f"relative L2 error {solution.summary['relative_l2']:.2e}")
    solution.plot("conductivity.png")
