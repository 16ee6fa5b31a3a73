"""How good a model is: the loss on points that no step sees, and its error where that is known."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..least_squares.objective import LeastSquares
from ..models.theta import Theta
from ..parallel.devices import map_points
from ..parallel.plan import Plan


class Evaluation(eqx.Module):
    """θ ↦ the loss on a batch of its own and, with a solution, the L2 error.

    The parameters that a run returns are those of the smallest loss on that batch: what is known of
    the solution has no say in it. Measured data have no points but their own.
    """

    objective: LeastSquares  # on points that no step sees
    points: Float[Array, "n d"]
    reference: Float[Array, "n ..."] | None

    def planned(self, plan: Plan) -> "Evaluation":
        """The same numbers, computed another way."""
        return Evaluation(self.objective.planned(plan), self.points, self.reference)

    @property
    def criterion(self) -> str:
        """The name of the number that says which parameters are best."""
        return "validation_loss"

    def __call__(self, theta: Theta) -> dict[str, Float[Array, ""]]:
        held_out = {"validation_loss": self.objective.loss(theta)}
        if self.reference is None:
            return held_out
        model = eqx.combine(theta, self.objective.frozen)
        values = map_points(model, self.points, self.objective.plan)
        error = root_mean_square(values - self.reference)
        return {
            "l2": error,
            "relative_l2": error / root_mean_square(self.reference),
            **held_out,
        }


def root_mean_square(values: Float[Array, "n ..."]) -> Float[Array, ""]:
    """√(mean over points of |value|²)."""
    return jnp.sqrt(jnp.sum(values**2) / len(values))
