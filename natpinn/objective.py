"""Where equations and optimizers meet: a PDE on one batch of points, as nonlinear least squares."""

from collections import OrderedDict
from itertools import accumulate
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from . import kernel
from .condition import Condition
from .domains import Points
from .layers import factored
from .models import Theta


class Linearization(eqx.Module):
    """residual(θ + v) ≈ residual + J v, with the rows of each condition together."""

    residual: Float[Array, " n"]
    jacobian: tuple[kernel.Blocks, ...]  # one row block for each condition
    conditions: tuple[str, ...] = eqx.field(static=True)

    @property
    def rows(self) -> dict[str, slice]:
        """Which rows belong to which condition."""
        ends = list(accumulate(map(kernel.row_count, self.jacobian), initial=0))
        return dict(zip(self.conditions, map(slice, ends[:-1], ends[1:]), strict=True))

    def jvp(self, v: Theta) -> Float[Array, " n"]:
        """J v."""
        return kernel.jacobian_vector(self.jacobian, v)

    def vjp(self, y: Float[Array, " n"]) -> Theta:
        """Jᵀ y."""
        return kernel.vector_jacobian(self.jacobian, y)

    def kernel(self) -> Float[Array, "n n"]:
        """J Jᵀ."""
        return kernel.kernel(self.jacobian)

    def kernel_mm(self, y: Float[Array, "n k"]) -> Float[Array, "n k"]:
        """J (Jᵀ Y), without the kernel."""
        return kernel.kernel_product(self.jacobian, y)

    def gramian(self) -> Float[Array, "p p"]:
        """Jᵀ J."""
        return kernel.gramian(self.jacobian)


class LeastSquares(eqx.Module):
    """½|r(θ)|², all that an optimizer may see of a problem.

    The rows of r are the residuals of every condition at every point of the batch, scaled by
    √(weight/n) so that the loss is Σ weight/(2n) Σ residual².
    """

    conditions: OrderedDict[str, Condition]  # JAX sorts a plain dict, and rows have an order
    points: dict[str, Points]
    frozen: PyTree  # what of the model is not trained

    def residual(self, theta: Theta) -> Float[Array, " n"]:
        return jnp.concatenate(list(self.residuals(theta).values()))

    def residuals(self, theta: Theta) -> dict[str, Float[Array, " n"]]:
        """The scaled rows of each condition."""
        model = eqx.combine(theta, self.frozen)
        return {
            name: self._scale(name) * _residual_rows(condition, model, self.points[name])
            for name, condition in self.conditions.items()
        }

    def loss(self, theta: Theta) -> Float[Array, ""]:
        return 0.5 * jnp.sum(self.residual(theta) ** 2)

    def losses(self, theta: Theta) -> dict[str, Float[Array, ""]]:
        """What each condition adds to the loss."""
        return {name: 0.5 * jnp.sum(rows**2) for name, rows in self.residuals(theta).items()}

    def linearize(self, theta: Theta) -> Linearization:
        parts = [self._linearize_condition(name, theta) for name in self.conditions]
        residuals, jacobian = zip(*parts, strict=True)
        return Linearization(jnp.concatenate(residuals), jacobian, tuple(self.conditions))

    def resample(self, key: PRNGKeyArray) -> "LeastSquares":
        """The same problem on fresh points."""
        return LeastSquares(self.conditions, sample(self.conditions, key), self.frozen)

    def _scale(self, name: str) -> Float[Array, ""]:
        n = len(jax.tree.leaves(self.points[name])[0])
        return jnp.sqrt(self.conditions[name].weight / n)

    def _linearize_condition(self, name: str, theta: Theta) -> tuple[Array, kernel.Blocks]:
        """The scaled rows of one condition and their gradients, point by point.

        Each residual sees one point, so its gradient costs one small reverse pass. Pulling back
        one-hot vectors through the stacked residual instead would cost n times as much.
        """
        condition, scale = self.conditions[name], self._scale(name)

        def gradient(point: Any, row: Float[Array, " k"]) -> tuple[Array, Theta]:
            def rows(theta: Theta) -> Float[Array, " k"]:
                return scale * condition.rows(eqx.combine(theta, self.frozen), point)

            residual, pull_back = jax.vjp(rows, theta)
            return residual @ row, pull_back(row)[0]

        per_row = factored(gradient, kernel.worth_factoring)
        one_point = jax.tree.map(lambda leaf: leaf[0], self.points[name])
        k = len(jax.eval_shape(condition.rows, eqx.combine(theta, self.frozen), one_point))
        per_point = jax.vmap(per_row, (None, 0)) if k > 1 else _with_row_axis(per_row)
        rows = jnp.eye(k) if k > 1 else jnp.ones(1)
        blocks = jax.vmap(per_point, (0, None))(self.points[name], rows)
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), blocks)


def sample(conditions: OrderedDict[str, Condition], key: PRNGKeyArray) -> dict[str, Points]:
    """A batch of points for every condition."""
    keys = jax.random.split(key, len(conditions))
    return {
        name: condition.sample(k)
        for (name, condition), k in zip(conditions.items(), keys, strict=True)
    }


def _residual_rows(condition: Condition, model: Any, points: Points) -> Float[Array, " n"]:
    return jax.vmap(lambda point: condition.rows(model, point))(points).ravel()


def _with_row_axis(function: Any) -> Any:
    """A function of a point whose results get a first axis of length one."""
    return lambda point, row: jax.tree.map(lambda leaf: leaf[None], function(point, row))
