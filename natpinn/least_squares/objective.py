"""Where equations and optimizers meet: a PDE on one batch of points, as nonlinear least squares."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ..domains.base import Points
from ..domains.sampling import Focused
from ..equations.condition import Condition
from ..models.theta import Theta
from ..parallel.devices import (
    BY_ROWS,
    DEVICES,
    REPLICATED,
    Index,
    loop,
    map_points,
    on_each_device,
    pad_points,
    point_count,
    spread,
)
from ..parallel.plan import Plan
from ..programs import from_shapes, traced_once
from .blocks import RowBlock
from .factoring import DenseLayer, LayerFactors, by_layer, factored
from .focus import chances, keep
from .linearization import Linearization
from .rows import Rows

Result = TypeVar("Result")


class LeastSquares(eqx.Module):
    """The loss ½|r(θ)|² on one batch of points: all that an optimizer sees of a problem.

    The rows of r are the residuals of every condition at every point of the batch, scaled by
    √(weight/n) so that the loss is Σ weight/(2n) Σ residual². `Problem.objective` makes it.

    **Arguments:**

    - `conditions`: the conditions by name, in the order of their rows.
    - `points`: the points of each condition.
    - `frozen`: what of the model is not trained, as `equinox.partition` leaves it.
    - `plan`: how a step is computed: whether the Jacobian is held, how much is done at once, on
      which devices, where some rows may be padding, which is zero. Default: all at once on one
      device.
    - `names`: of the coordinates, for messages. Default: none.
    - `corrections`: what the rows at each point are multiplied with beside their scale, for
      conditions whose points are not spread evenly. Default: none.

        import jax
        import natpinn

        key = jax.random.key(0)
        problem = natpinn.problems.get("poisson_2d", points={"interior": 20, "boundary": 5})
        objective, theta = problem.objective(problem.default_model(key), problem.sample(key))
        print(objective.residual(theta).shape)
    """

    conditions: OrderedDict[str, Condition]  # JAX sorts a plain dict, and rows have an order
    points: dict[str, Points]
    frozen: PyTree  # what of the model is not trained
    plan: Plan = eqx.field(static=True, default_factory=Plan)
    names: tuple[str, ...] = eqx.field(static=True, default=())  # of the coordinates, for messages
    corrections: dict[str, Float[Array, " n"]] = eqx.field(default_factory=dict)

    def residual(self, theta: Theta) -> Float[Array, " n"]:
        """r(θ), of shape (n,): the scaled rows of all conditions, one condition after the other."""
        return jnp.concatenate(list(self.residuals(theta).values()))

    def residuals(self, theta: Theta) -> dict[str, Float[Array, " n"]]:
        """The scaled rows of each condition."""
        model = eqx.combine(theta, self.frozen)

        def rows(name: str) -> Float[Array, " n"]:
            points, scale = self._padded(name)
            at_points = map_points(
                lambda x: self.conditions[name].rows(model, x), points, self.plan
            )
            return (scale[:, None] * at_points).ravel()

        return {name: rows(name) for name in self.conditions}

    def loss(self, theta: Theta) -> Float[Array, ""]:
        """½|r(θ)|²."""
        return 0.5 * jnp.sum(self.residual(theta) ** 2)

    def losses(self, theta: Theta) -> dict[str, Float[Array, ""]]:
        """What each condition adds to the loss."""
        return {name: 0.5 * jnp.sum(rows**2) for name, rows in self.residuals(theta).items()}

    def linearize(self, theta: Theta) -> "Linearization":
        """The linear model r(θ + v) ≈ r + J v at θ, its Jacobian held or streamed as planned."""
        if not self.plan.held:
            return Linearization(self, theta, self.residual(theta), None)
        parts = [self._hold_rows(name, theta) for name in self.conditions]
        residuals, jacobian = zip(*parts, strict=True)
        return Linearization(self, theta, jnp.concatenate(residuals), jacobian)

    def resample(self, key: PRNGKeyArray, theta: Theta | None = None) -> "LeastSquares":
        """The same problem on fresh points, which may follow the residual at θ.

        **Arguments:**

        - `key`: a random key of JAX; the points are a function of it.
        - `theta`: the parameters whose residual `Focused` samplers follow. Default: none, and
          points are spread evenly.

        **Returns:** the new `LeastSquares`.
        """
        objective = replace(self, points=sample(self.conditions, key), corrections={})
        if theta is None:
            return objective
        keys = jax.random.split(key, len(self.conditions))
        for (name, condition), k in zip(self.conditions.items(), keys, strict=True):
            if isinstance(condition.sampler, Focused) and condition.domain.size is None:
                objective = objective._focused(name, k, theta, condition.sampler)
        return objective

    def _focused(
        self, name: str, key: PRNGKeyArray, theta: Theta, sampler: Focused
    ) -> "LeastSquares":
        """The same problem with the points of one condition chosen from many candidates."""
        condition, model = self.conditions[name], eqx.combine(theta, self.frozen)
        candidates_key, choice_key = jax.random.split(key)
        count, many = condition.points, sampler.candidates * condition.points
        candidates = condition.domain.sample(candidates_key, many, sampler)
        rows = map_points(lambda x: condition.rows(model, x), candidates, self.plan)
        chance = chances(jnp.sum(rows**2, axis=1), count, sampler.share)
        kept = keep(chance, count, choice_key)
        points = jax.tree.map(lambda leaf: leaf[kept], candidates)
        correction = jnp.sqrt(count / (many * chance[kept]))
        return replace(
            self,
            points={**self.points, name: points},
            corrections={**self.corrections, name: correction},
        )

    def planned(self, plan: Plan) -> "LeastSquares":
        """The same problem, computed another way."""
        return replace(self, plan=plan)

    def row_counts(self, theta: Theta) -> dict[str, int]:
        """The number of rows of each condition, padding included."""
        return {
            name: self.plan.padded(point_count(self.points[name]))
            * self._rows_per_point(name, theta)
            for name in self.conditions
        }

    def padding(self, theta: Theta) -> int:
        """The number of rows of zeros, with which every device has as many points."""
        counts = {name: point_count(points) for name, points in self.points.items()}
        return sum(
            (self.plan.padded(n) - n) * self._rows_per_point(name, theta)
            for name, n in counts.items()
        )

    def linearize_points(
        self, name: str, theta: Theta, points: Points, scale: Float[Array, " c"]
    ) -> tuple[Float[Array, " n"], RowBlock]:
        """The scaled rows of one condition at some points, and their gradients, point by point.

        Each residual sees one point, so its gradient costs one small reverse pass. Pulling back
        one-hot vectors through the stacked residual instead would cost n times as much.
        """
        at_point = partial(_linearize_point, self.conditions[name], self.frozen, theta)
        blocks = jax.vmap(at_point)(points, scale)
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), blocks)

    def sum_layers(
        self,
        name: str,
        theta: Theta,
        layers: Sequence[DenseLayer],
        summand: Callable[[list[LayerFactors], Float[Array, " c"]], Result],
    ) -> Result:
        """A sum over the rows of a condition, of what the layers' gradients are made of.

        The summand gets the factors of some scaled rows and the weights of these in the loss, zero
        for padding; so many points at once as planned.
        """
        n = point_count(self.points[name])
        size = self.plan.chunk(n)
        chunks = -(-n // size)
        points, scale = self._padded(name, chunks * size)

        def part(i: Index) -> Result:
            some = jax.tree.map(
                lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, i * size, size), (points, scale)
            )
            here, weight = spread(some, self.plan, BY_ROWS)
            k = self._rows_per_point(name, theta)
            factors = self.layer_factors(name, theta, layers, here, weight)
            return summand(factors, jnp.repeat(weight**2, k))

        empty = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(part, 0)
        )
        return loop(chunks, lambda i, total: jax.tree.map(jnp.add, total, part(i)), empty)

    def layer_factors(
        self,
        name: str,
        theta: Theta,
        layers: Sequence[DenseLayer],
        points: Points,
        scale: Float[Array, " c"],
    ) -> list[LayerFactors]:
        """For each layer what the gradients of scaled rows at some points are made of."""
        condition, frozen = self.conditions[name], self.frozen
        gradient = _row_gradient(condition, frozen)
        per_row = by_layer(lambda *arguments: gradient(*arguments)[1], layers)
        at_point = partial(_over_rows, per_row, condition, frozen, theta)
        factors = jax.vmap(at_point)(points, scale)
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), factors)

    def layer_shapes(
        self, name: str, theta: Theta, layers: Sequence[DenseLayer]
    ) -> list[LayerFactors]:
        """The factors of the rows at one point, as shapes."""
        return self._at_one_point(name, lambda *at: self.layer_factors(name, theta, layers, *at))

    def block_shapes(self, theta: Theta) -> dict[str, RowBlock]:
        """The rows of each condition at one point, as shapes."""
        return {
            name: self._at_one_point(
                name, lambda *at, name=name: self.linearize_points(name, theta, *at)[1]
            )
            for name in self.conditions
        }

    def _at_one_point(self, name: str, function: Callable[..., Result]) -> Result:
        """The shapes of a function of points and their scale, at one of them."""
        points, scale = self._padded(name)
        return jax.eval_shape(function, *jax.tree.map(lambda leaf: leaf[:1], (points, scale)))

    def stream(self, name: str, theta: Theta) -> Rows:
        """The rows of one condition, computed whenever they are asked for."""
        points, scale = self._padded(name)
        n, k = len(scale), self._rows_per_point(name, theta)
        chunk = min(n, self.plan.chunk(n))
        mine = chunk // self.plan.devices

        def blocks(i: Index, distinct: bool) -> RowBlock:
            first = i * chunk
            start = jnp.minimum(first, n - chunk) + mine * self._device()
            here, weight = jax.tree.map(
                lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, mine), (points, scale)
            )
            if distinct:
                weight = jnp.where(start + jnp.arange(mine) >= first, weight, 0.0)
            return self.linearize_points(name, theta, here, weight)[1]

        return Rows(n * k, chunk * k, lambda i: blocks(i, False), lambda i: blocks(i, True))

    def _hold_rows(self, name: str, theta: Theta) -> tuple[Float[Array, " n"], RowBlock]:
        """All rows of one condition and their gradients, so many points at once as planned."""

        def fill(
            objective: LeastSquares, theta: Theta, points: Points, scale: Float[Array, " n"]
        ) -> tuple[Float[Array, " n"], RowBlock]:
            n, k = len(scale), objective._rows_per_point(name, theta)
            at_once = min(n, -(-self.plan.chunk(n * self.plan.devices) // self.plan.devices))

            def some(start: Index) -> tuple[Float[Array, " c"], RowBlock]:
                here, weight = jax.tree.map(
                    lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, at_once), (points, scale)
                )
                return objective.linearize_points(name, theta, here, weight)

            def body(
                i: Index, rows: tuple[Float[Array, " n"], RowBlock]
            ) -> tuple[Float[Array, " n"], RowBlock]:
                start = jnp.minimum(i * at_once, n - at_once)
                return jax.tree.map(
                    lambda whole, part: jax.lax.dynamic_update_slice_in_dim(
                        whole, part, start * k, 0
                    ),
                    rows,
                    some(start),
                )

            if at_once == n:
                return objective.linearize_points(name, theta, points, scale)
            empty = jax.tree.map(
                lambda leaf: jnp.zeros((n * k, *leaf.shape[1:]), leaf.dtype),
                jax.eval_shape(some, 0),
            )
            return loop(-(-n // at_once), body, empty)

        specs = (REPLICATED, REPLICATED, BY_ROWS, BY_ROWS)
        return on_each_device(fill, self.plan, specs, BY_ROWS)(self, theta, *self._padded(name))

    def _padded(self, name: str, size: int | None = None) -> tuple[Points, Float[Array, " n"]]:
        """The points of a condition and the scale of their rows, zero for padding."""
        points = self.points[name]
        n = point_count(points)
        padded = size or self.plan.padded(n)
        scale = jnp.sqrt(self.conditions[name].weight / n)
        if name in self.corrections:
            scale = pad_points(scale * self.corrections[name], padded)
        return pad_points(points, padded), jnp.where(jnp.arange(padded) < n, scale, 0.0)

    def _rows_per_point(self, name: str, theta: Theta) -> int:
        points = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), self.points[name]
        )
        return from_shapes(_count_rows, self.conditions[name], theta, self.frozen, points)

    def _device(self) -> Index:
        return 0 if self.plan.mesh is None else jax.lax.axis_index(DEVICES)


def sample(conditions: OrderedDict[str, Condition], key: PRNGKeyArray) -> dict[str, Points]:
    """A batch of points for every condition."""
    keys = jax.random.split(key, len(conditions))
    return {
        name: condition.sample(k)
        for (name, condition), k in zip(conditions.items(), keys, strict=True)
    }


@traced_once
def _linearize_point(
    condition: Condition, frozen: PyTree, theta: Theta, point: Points, scale: Float[Array, ""]
) -> tuple[Float[Array, " k"], RowBlock]:
    """The scaled rows at one point, and their gradients."""
    per_row = factored(_row_gradient(condition, frozen))
    return _over_rows(per_row, condition, frozen, theta, point, scale)


def _row_gradient(condition: Condition, frozen: PyTree) -> Callable[..., tuple[Array, Theta]]:
    """One row at one point, and its gradient."""

    def gradient(
        theta: Theta, point: Points, scale: Float[Array, ""], row: Float[Array, " k"]
    ) -> tuple[Array, Theta]:
        def rows(theta: Theta) -> Float[Array, " k"]:
            return scale * condition.rows(eqx.combine(theta, frozen), point)

        residual, pull_back = jax.vjp(rows, theta)
        return residual @ row, pull_back(row)[0]

    return gradient


def _over_rows(
    per_row: Callable[..., Result],
    condition: Condition,
    frozen: PyTree,
    theta: Theta,
    point: Points,
    scale: Float[Array, ""],
) -> Result:
    """A function of θ, a point, its scale and one row, for each row at a point."""
    k = _count_rows(condition, theta, frozen, point)
    if k == 1:
        return _with_row_axis(per_row)(theta, point, scale, jnp.ones(1))
    return jax.vmap(per_row, (None, None, None, 0))(theta, point, scale, jnp.eye(k))


def _count_rows(condition: Condition, theta: Theta, frozen: PyTree, point: Points) -> int:
    """The number of rows at one point."""
    return len(eqx.filter_eval_shape(condition.rows, eqx.combine(theta, frozen), point))


def _with_row_axis(function: Callable[..., Result]) -> Callable[..., Result]:
    """A function of a point whose results get a first axis of length one."""
    return lambda *arguments: jax.tree.map(lambda leaf: leaf[None], function(*arguments))
