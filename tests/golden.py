"""Reference numbers of an independent implementation: see tests/data."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import natpinn

PROBLEMS = ("poisson_5d", "heat_4d", "log_fokker_planck_9d")


class Golden:
    """One problem on the golden batch, at the golden parameters."""

    def __init__(self, name: str):
        self.numbers = dict(np.load(Path(__file__).parent / "data" / f"{name}.npz"))
        self.problem = natpinn.problems.get(name)
        points = jnp.asarray(self.numbers["condition_points"])
        conditions = {
            "poisson_5d": {"boundary": points},
            "heat_4d": {"boundary": points[:5], "initial": points[5:]},
            "log_fokker_planck_9d": {"initial": points},
        }[name]
        batch = {"interior": jnp.asarray(self.numbers["interior_points"]), **conditions}
        self.objective, self.theta = self.problem.objective(self._model(), batch)

    def _model(self) -> natpinn.MLP:
        inputs = self.numbers["weight_0"].shape[1]
        model = natpinn.MLP(inputs, (8, 6), key=jax.random.key(0))
        parameters = [self.numbers[f"{kind}_{i}"] for i in range(3) for kind in ("weight", "bias")]
        return eqx.tree_at(
            lambda m: [leaf for layer in m.layers for leaf in (layer.weight, layer.bias)],
            model,
            [jnp.asarray(p) for p in parameters],
        )
