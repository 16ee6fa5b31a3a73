"""How good a model is: its error, or the loss on points that it was not trained on."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..least_squares.objective import LeastSquares
from ..models.theta import Theta
from ..parallel.devices import map_points
from ..parallel.plan import Plan


class Evaluation(eqx.Module):
    """θ ↦ the L2 error, absolute and relative; without a solution, the loss on a held batch."""

    objective: LeastSquares
    points: Float[Array, "n d"]
    reference: Float[Array, "n ..."] | None

    def planned(self, plan: Plan) -> "Evaluation":
        """The same numbers, computed another way."""
        return Evaluation(self.objective.planned(plan), self.points, self.reference)

    @property
    def criterion(self) -> str:
        """The name of the number that says how good a model is."""
        return "validation_loss" if self.reference is None else "l2"

    def __call__(self, theta: Theta) -> dict[str, Float[Array, ""]]:
        if self.reference is None:
            return {"validation_loss": self.objective.loss(theta)}
        model = eqx.combine(theta, self.objective.frozen)
        values = map_points(model, self.points, self.objective.plan)
        error = root_mean_square(values - self.reference)
        return {
            "l2": error,
            "relative_l2": error / root_mean_square(self.reference),
        }


def root_mean_square(values: Float[Array, "n ..."]) -> Float[Array, ""]:
    """√(mean over points of |value|²)."""
    return jnp.sqrt(jnp.sum(values**2) / len(values))
