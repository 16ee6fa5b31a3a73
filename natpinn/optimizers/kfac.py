"""K-FAC: curvature that is, layer by layer, a sum of two Kronecker products.

Following Dangel, Müller and Zeinhofer (2024). A layer's Gauss-Newton matrix is approximated by
A₁ ⊗ B₁ + A₂ ⊗ B₂, with the moments A of its inputs and B of its cotangents over points and streams:
one product for the first condition, the equation in the interior, and one for all others together.
"""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .. import schedule
from ..checks import check_flag
from ..errors import InputError
from ..least_squares.factoring import DenseLayer, LayerFactors, dense_layers
from ..least_squares.footprint import Demand, Footprint
from ..least_squares.objective import LeastSquares
from ..models.theta import Theta
from ..schedule import Schedule
from .base import Optimizer, StepInfo, norm
from .kfac_update import Here, UpdateRule


class Moments(NamedTuple):
    """A ⊗ B: the second moments of a layer's inputs and of its cotangents."""

    inputs: Float[Array, "i i"]
    cotangents: Float[Array, "o o"]


class Basis(NamedTuple):
    """Kᵀ M₁ K = I and Kᵀ M₂ K = diag(values)."""

    vectors: Float[Array, "m m"]
    values: Float[Array, " m"]


class LayerCurvature(NamedTuple):
    """What is known of one layer: averaged moments, and the bases that they gave."""

    interior: Moments
    others: Moments
    inputs: Basis
    cotangents: Basis


class KfacState(NamedTuple):
    layers: list[LayerCurvature]
    update: Theta  # the last one
    step: Int[Array, ""]


class Kfac(Optimizer[KfacState]):
    """Gradients, preconditioned layer by layer with [(A₁+λI)⊗(B₁+λI) + (A₂+λI)⊗(B₂+λI)]⁻¹.

    A are the second moments of a layer's inputs and B those of its cotangents; the first product is
    for the first condition, the second for all others together. Every trainable array has to be the
    matrix or the bias of a dense layer.

    **Arguments:** hyper-parameters are numbers, or functions of the step such as optax's schedules.

    - `damping`: λ, positive, added to each factor.
    - `rule`: how far to go, and with how much of the last update: `Quadratic()` or `Searched(…)`.
    - `average`: the weight of earlier batches in the moments, from 0 and below 1. Default: 0.95.
    - `start_at_identity`: whether the averages start from the identity, or else from zero. Default:
      True.
    - `refresh_every`: steps after which the moments are decomposed anew. Default: 10.

    **Raises:** `InputError` for a number out of its range, and for another rule; in the first step
    for a model with arrays that belong to no dense layer.

        import natpinn

        optimizer = natpinn.Kfac(1e-8, natpinn.Quadratic())
    """

    damping: Schedule = eqx.field(converter=schedule.damping)
    rule: UpdateRule
    average: Schedule = eqx.field(converter=schedule.average, default=0.95)
    start_at_identity: bool = eqx.field(static=True, default=True)
    refresh_every: int = schedule.count("refresh_every", 10)

    def __check_init__(self):
        check_flag(self.start_at_identity, "start_at_identity")
        if not isinstance(self.rule, UpdateRule):
            raise InputError(
                f"K-FAC needs a rule for its updates, Quadratic() or Searched(line_search), got "
                f"{self.rule!r}"
            )

    def init(self, theta: Theta) -> KfacState:
        def start(size: int) -> Float[Array, "m m"]:
            return jnp.eye(size) if self.start_at_identity else jnp.zeros((size, size))

        def curvature(out: int, into: int) -> LayerCurvature:
            moments = Moments(start(into), start(out))
            bases = [Basis(jnp.eye(size), jnp.ones(size)) for size in (into, out)]
            return LayerCurvature(moments, moments, *bases)

        zero = jax.tree.map(jnp.zeros_like, theta)
        layers = [curvature(*shape) for shape in _shapes(dense_layers(theta), theta)]
        return KfacState(layers, zero, jnp.array(0))

    def footprint(self, rows: int, parameters: int) -> Footprint:
        return Footprint(Demand.LAYERS, state_copies=2)

    def step(
        self, objective: LeastSquares, theta: Theta, state: KfacState, *, key: PRNGKeyArray
    ) -> tuple[Theta, KfacState, StepInfo]:
        damping = schedule.at(self.damping, state.step)
        residual, push = jax.linearize(objective.residual, theta)
        loss = 0.5 * jnp.sum(residual**2)
        (gradient,) = jax.linear_transpose(push, theta)(residual)

        layers = dense_layers(theta)
        moments, transposed = layer_moments(objective, theta, layers)
        curvatures = self._renewed(moments, state, damping)
        direction = precondition(gradient, layers, transposed, curvatures)
        here = Here(objective, theta, residual, push, damping, state.step)
        found = self.rule.update(here, direction, state.update)
        details = {
            "step_size": found.size,
            "damping": damping,
            "momentum": found.momentum,
            "update_norm": norm(jax.tree.map(jnp.subtract, found.reached, theta)),
        }
        new_state = KfacState(curvatures, found.last, state.step + 1)
        return found.reached, new_state, StepInfo(loss, details)

    def _renewed(
        self,
        moments: Sequence[tuple[Moments, Moments]],
        state: KfacState,
        damping: Float[Array, ""],
    ) -> list[LayerCurvature]:
        """The curvature with the moments of this batch in the average."""
        average = schedule.at(self.average, state.step)
        is_due = state.step % self.refresh_every == 0
        renewed = []
        for old, new in zip(state.layers, moments, strict=True):
            interior, others = jax.tree.map(
                lambda old, new: average * old + (1 - average) * new,
                (old.interior, old.others),
                new,
            )
            inputs, cotangents = jax.lax.cond(
                is_due,
                lambda a=interior, b=others: _bases(a, b, damping),
                lambda old=old: (old.inputs, old.cotangents),
            )
            renewed.append(LayerCurvature(interior, others, inputs, cotangents))
        return renewed


def layer_moments(
    objective: LeastSquares, theta: Theta, layers: Sequence[DenseLayer]
) -> tuple[list[tuple[Moments, Moments]], list[bool]]:
    """For each layer the moments of the first condition, and of all others together.

    Also whether the layer's matrix is used as x @ W.
    """
    first, *others = objective.conditions
    parts = []
    for names in ([first], others):
        sums = [Moments(jnp.zeros((i, i)), jnp.zeros((o, o))) for o, i in _shapes(layers, theta)]
        total = (sums, jnp.zeros(()))
        for name in names:
            part = objective.sum_layers(name, theta, layers, _weighted_moments)
            total = jax.tree.map(jnp.add, total, part)
        sums, weight = total
        weight = jnp.where(weight > 0, weight, 1.0)
        parts.append([Moments(inputs / weight, cotangents) for inputs, cotangents in sums])
    shapes = [objective.layer_shapes(name, theta, layers) for name in objective.conditions]
    transposed = [
        any(layer.is_transposed for layer in found) for found in zip(*shapes, strict=True)
    ]
    return list(zip(*parts, strict=True)), transposed


def _weighted_moments(
    layers: Sequence[LayerFactors], weights: Float[Array, " n"]
) -> tuple[list[Moments], Float[Array, ""]]:
    """Σ z zᵀ / S with the weights of the rows, and Σ g gᵀ, whose g are scaled already."""

    def moments(layer: LayerFactors) -> Moments:
        z, g = layer.factors.inputs, layer.factors.cotangents
        inputs = jnp.einsum("n,nsi,nsj->ij", weights / layer.factors.streams, z, z)
        return Moments(inputs, jnp.einsum("nsi,nsj->ij", g, g))

    return [moments(layer) for layer in layers], weights.sum()


def precondition(
    gradient: Theta,
    layers: Sequence[DenseLayer],
    transposed: Sequence[bool],
    curvatures: Sequence[LayerCurvature],
) -> Theta:
    """X with B₁ X A₁ + B₂ X A₂ = G for every layer, damped as the bases are."""
    leaves, structure = jax.tree.flatten(gradient)
    for layer, is_turned, curvature in zip(layers, transposed, curvatures, strict=True):
        left, right = curvature.cotangents, curvature.inputs
        weight = leaves[layer.weight].T if is_turned else leaves[layer.weight]
        columns = [weight] if layer.bias is None else [weight, leaves[layer.bias][:, None]]
        rotated = left.vectors.T @ jnp.concatenate(columns, axis=1) @ right.vectors
        rotated = rotated / (1 + jnp.outer(left.values, right.values))
        solved = left.vectors @ rotated @ right.vectors.T
        if layer.bias is not None:
            leaves[layer.bias] = solved[:, -1]
            solved = solved[:, :-1]
        leaves[layer.weight] = solved.T if is_turned else solved
    return structure.unflatten(leaves)


def _bases(interior: Moments, others: Moments, damping: Float[Array, ""]) -> tuple[Basis, Basis]:
    """Bases in which the damped moments of both conditions are diagonal: inputs, cotangents."""
    inputs, cotangents = (
        _common_basis(first, second, damping)
        for first, second in zip(interior, others, strict=True)
    )
    return inputs, cotangents


def _common_basis(
    first: Float[Array, "m m"], second: Float[Array, "m m"], damping: Float[Array, ""]
) -> Basis:
    identity = jnp.eye(len(first))
    values, vectors = jnp.linalg.eigh(first + damping * identity)
    smallest = jnp.finfo(first.dtype).eps * len(first) * jnp.maximum(values[-1], damping)
    whitened = vectors / jnp.sqrt(jnp.maximum(values, smallest))
    ratios, rotation = jnp.linalg.eigh(whitened.T @ (second + damping * identity) @ whitened)
    return Basis(whitened @ rotation, ratios.clip(0))


def _shapes(layers: Sequence[DenseLayer], theta: Theta) -> list[tuple[int, int]]:
    """Of each layer the outputs, and the inputs with the one of the bias."""
    leaves = jax.tree.leaves(theta)

    def shape(layer: DenseLayer) -> tuple[int, int]:
        rows, columns = leaves[layer.weight].shape
        if layer.bias is None:
            return rows, columns
        outputs = len(leaves[layer.bias])
        return outputs, (columns if outputs == rows else rows) + 1

    return [shape(layer) for layer in layers]
