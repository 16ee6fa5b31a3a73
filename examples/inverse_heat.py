"""The diffusivity κ of a rod from five noisy thermometers: u_t = κ u_xx, u = 0 at both ends."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from natpinn import MLP, Box, Condition, Data, Problem, Solution, TimeSpace, partial, solve

KAPPA, NOISE, EXACT = 0.1, 0.01, 100.0  # the last is the weight of what holds without noise


class Rod(eqx.Module):
    """A temperature and an unknown diffusivity, positive by construction."""

    temperature: MLP
    log_kappa: jax.Array

    def __call__(self, tx):
        return self.temperature(tx)

    @property
    def kappa(self):
        return jnp.exp(self.log_kappa)


def exact(tx):
    return jnp.exp(-KAPPA * jnp.pi**2 * tx[0]) * jnp.sin(jnp.pi * tx[1])


slab = TimeSpace(0, 1, Box([0], [1]))
places = np.array([(t, x) for t in np.linspace(0, 1, 10) for x in np.linspace(0.1, 0.9, 5)])
noise = NOISE * np.random.default_rng(0).normal(size=50)
measured = np.array([exact(tx) for tx in places]) + noise
problem = Problem(
    {
        "heat": Condition(
            lambda u, tx: partial(u, 0)(tx) - u.kappa * partial(u, 1, 1)(tx), slab, EXACT, 200
        ),
        "ends": Condition(lambda u, tx: u(tx), slab.boundary, EXACT, 50),
        "data": Condition(lambda u, point: u(point[0]) - point[1], Data(places, measured)),
    },
    solution=exact,
    name="inverse_heat",
)


def model(key):
    return Rod(MLP(2, (20, 20), key=key), jnp.array(0.0))


def main(steps: int = 200, **options) -> Solution:
    return solve(problem, model(jax.random.key(0)), steps=steps, **options)


if __name__ == "__main__":
    solution = main()
    print(f"diffusivity {float(solution.model.kappa):.4f}, in truth {KAPPA}")
    solution.plot("inverse_heat.png")
