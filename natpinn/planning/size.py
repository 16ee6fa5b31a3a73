"""What a step is made of: rows, parameters, bytes and operations, from shapes alone."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..domains.base import Points
from ..equations.condition import Condition
from ..least_squares.blocks import FLOAT, RowBlock
from ..least_squares.cost import Counted, PairCost, pair_costs
from ..least_squares.factoring import LayerFactors, dense_layers
from ..least_squares.footprint import Demand, Footprint
from ..least_squares.objective import LeastSquares
from ..models.theta import Theta, parameter_count
from ..optimizers.base import Optimizer
from ..parallel.devices import point_count
from ..parallel.plan import Plan
from ..precision import real
from ..programs import from_shapes, inner_programs

if TYPE_CHECKING:
    from jax.extend.core import Jaxpr, Literal, Var

VECTORS = 8  # copies of the parameters that a step has beside its state
Known = tuple[Condition, PyTree, Theta]  # a condition, what of the model is frozen, and θ


@dataclass(frozen=True)
class ConditionSize:
    """What one condition adds to a step."""

    points: int
    rows: int  # of each point
    blocks: RowBlock  # shapes of the Jacobian at one point
    block_bytes: int  # of the Jacobian, per point
    linearize_bytes: int  # of all else while the Jacobian is computed, per point
    forward_bytes: int  # while the residual is computed, per point
    linearize_flops: int  # per point
    layer_bytes: int  # of the factors of all layers, per point; 0 if none are needed


@dataclass(frozen=True)
class Size:
    """What a step is made of."""

    conditions: dict[str, ConditionSize]
    parameters: int
    state_bytes: int
    footprint: Footprint  # of the optimizer

    @property
    def demand(self) -> Demand:
        return self.footprint.demand

    @property
    def rows(self) -> int:
        return sum(c.points * c.rows for c in self.conditions.values())

    @property
    def most_points(self) -> int:
        return max(c.points for c in self.conditions.values())

    @property
    def explicit_bytes(self) -> int:
        """The bytes of a Jacobian with all gradients formed."""
        return FLOAT * self.rows * self.parameters

    @property
    def held_bytes(self) -> int:
        """The bytes of the Jacobian as it is held: as factors where these are smaller."""
        return sum(c.points * c.block_bytes for c in self.conditions.values())

    @property
    def fixed_bytes(self) -> int:
        """The bytes that every plan needs."""
        vectors = VECTORS * FLOAT * self.parameters
        return self.state_bytes + vectors + self.footprint.system_bytes


def size_of(objective: LeastSquares, theta: Theta, optimizer: Optimizer) -> Size:
    """The sizes of a step; nothing is computed."""
    counts = objective.row_counts(theta)  # after padding
    rows = sum(counts.values())
    demand = optimizer.footprint(rows, parameter_count(theta)).demand
    conditions = {name: _condition_size(objective, theta, name, demand) for name in counts}
    return _size(conditions, rows, theta, optimizer)


def resized(size: Size, points: Mapping[str, int], theta: Theta, optimizer: Optimizer) -> Size:
    """The sizes of a step with other numbers of points, on one device."""
    conditions = {
        name: replace(c, points=points.get(name, c.points)) for name, c in size.conditions.items()
    }
    rows = sum(c.points * c.rows for c in conditions.values())
    return _size(conditions, rows, theta, optimizer)


def _size(
    conditions: dict[str, ConditionSize], rows: int, theta: Theta, optimizer: Optimizer
) -> Size:
    parameters = parameter_count(theta)
    footprint = optimizer.footprint(rows, parameters)
    state = footprint.state_copies * _bytes_of(jax.eval_shape(optimizer.init, theta))
    return Size(conditions, parameters, _bytes_of(theta) + state, footprint)


def system_flops(size: Size) -> tuple[int, int]:
    """The operations of a natural gradient: for the system or a sketch's products, and to solve."""
    n, p, k = size.rows, size.parameters, size.footprint.columns
    if size.demand is Demand.GRAMIAN:
        return n * p * (p + 1), p**3 // 3
    if size.demand is Demand.SKETCH:
        return 4 * n * p * k, 6 * n * k**2
    if size.demand is Demand.KERNEL:
        return int(sum(cost.operations for cost in kernel_costs(size).values())), n**3 // 3
    return 0, 0


def whiten_flops(size: Size) -> int:
    """The operations of an accurate solve beside those of the system: two passes over all rows."""
    side, others = sorted((size.rows, size.parameters))
    return (2 * side**2 * others + 3 * side**3) if size.footprint.whitens else 0


def kernel_costs(size: Size) -> dict[tuple[str, str], PairCost]:
    """The operations of a kernel, for each pair of conditions."""
    names = list(size.conditions)
    counted = [Counted(c.blocks, c.points * c.rows) for c in size.conditions.values()]
    return {(names[i], names[j]): cost for (i, j), cost in pair_costs(counted).items()}


def linearize_flops(size: Size, plan: Plan) -> int:
    """The operations of all linearizations of a step: each row once, or again for every pair."""
    once = sum(c.points * c.linearize_flops for c in size.conditions.values())
    if plan.held or size.demand is Demand.GRAMIAN:
        return once
    if size.demand is Demand.SKETCH:
        return 2 * once
    total, chunks = 0, [-(-c.points // plan.chunk(c.points)) for c in size.conditions.values()]
    for i, c in enumerate(size.conditions.values()):
        later = sum(chunks[i + 1 :])  # strips of later conditions, each of which needs all of these
        total += c.points * c.linearize_flops * ((chunks[i] + 1) / 2 + later + (i > 0))
    return int(total)


def _condition_size(
    objective: LeastSquares, theta: Theta, name: str, demand: Demand
) -> ConditionSize:
    points = objective.points[name]
    at_one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), points)
    condition, frozen = objective.conditions[name], objective.frozen
    with_layers = demand is Demand.LAYERS
    size = from_shapes(_size_of_condition, condition, frozen, theta, at_one, with_layers)
    return replace(size, points=point_count(points))


def _size_of_condition(
    condition: Condition, frozen: PyTree, theta: Theta, point: Points, with_layers: bool
) -> ConditionSize:
    """What one point of a condition adds to a step."""
    name = "condition"
    known = (condition, frozen, theta)

    def linearize(
        known: Known, points: Points, scale: Float[Array, " n"]
    ) -> tuple[Float[Array, " n"], RowBlock]:
        return _alone(name, known, points).linearize_points(name, known[2], points, scale)

    def forward(known: Known, points: Points, scale: Float[Array, " n"]) -> Array:
        condition, frozen, theta = known
        model = eqx.combine(theta, frozen)
        return jax.vmap(lambda x: condition.rows(model, x))(points)

    def layer_factors(
        known: Known, points: Points, scale: Float[Array, " n"]
    ) -> list[LayerFactors]:
        _, _, theta = known
        layers = dense_layers(theta)
        return _alone(name, known, points).layer_factors(name, theta, layers, points, scale)

    def programs(function: Callable[..., PyTree]) -> "tuple[Jaxpr, Jaxpr, PyTree]":
        """At one point and at two, and the shapes of the results at one."""
        one, *shapes = eqx.filter_make_jaxpr(function)(known, *_some(1, point))
        two, *_ = eqx.filter_make_jaxpr(function)(known, *_some(2, point))
        return one.jaxpr, two.jaxpr, eqx.combine(*shapes)

    one, two, (residual, blocks) = programs(linearize)
    ahead_one, ahead_two, _ = programs(forward)
    layer_bytes = 0
    if with_layers and dense_layers(theta):
        layer_bytes = _bytes_of(eqx.filter_eval_shape(layer_factors, known, *_some(1, point)))
    return ConditionSize(
        points=1,
        rows=len(residual),
        blocks=blocks,
        block_bytes=_bytes_of(blocks),
        linearize_bytes=_live_bytes(two) - _live_bytes(one),
        forward_bytes=_live_bytes(ahead_two) - _live_bytes(ahead_one),
        linearize_flops=_flops(one),
        layer_bytes=layer_bytes,
    )


def _alone(name: str, known: Known, points: Points) -> LeastSquares:
    """The problem of one condition."""
    condition, frozen, _ = known
    return LeastSquares(OrderedDict({name: condition}), {name: points}, frozen)


def _some(count: int, point: Points) -> tuple[Points, jax.ShapeDtypeStruct]:
    """So many points and their scales, as shapes."""
    points = jax.tree.map(lambda p: jax.ShapeDtypeStruct((count, *p.shape), p.dtype), point)
    return points, jax.ShapeDtypeStruct((count,), real())


def _flops(jaxpr: Any) -> int:
    """Operations of a program: of its products, and one for each element of anything else."""
    total = 0
    for equation in jaxpr.eqns:
        inner = inner_programs(equation)
        size = sum(int(np.prod(v.aval.shape)) for v in equation.outvars)
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            size *= 2 * int(np.prod([shape[axis] for axis in contracted]))
        total += sum(map(_flops, inner)) if inner else size
    return total


def _live_bytes(jaxpr: "Jaxpr") -> int:
    """The most bytes that are alive at once when a program runs line by line."""
    last_use: dict[Var | Literal, int] = {}
    for i, equation in enumerate(jaxpr.eqns):
        last_use.update({atom: i for atom in equation.invars if not hasattr(atom, "val")})
    for atom in jaxpr.outvars:
        if not hasattr(atom, "val"):
            last_use[atom] = len(jaxpr.eqns)
    alive = most = 0
    inputs = {*jaxpr.invars, *jaxpr.constvars}
    for i, equation in enumerate(jaxpr.eqns):
        inside = max((_live_bytes(inner) for inner in inner_programs(equation)), default=0)
        made = sum(_aval_bytes(v) for v in equation.outvars if v in last_use)
        most = max(most, alive + max(made, inside))
        alive += made
        done = {a for a in equation.invars if not hasattr(a, "val") and last_use.get(a) == i}
        alive -= sum(_aval_bytes(a) for a in done - inputs)
        most = max(most, alive)
    return most


def _aval_bytes(variable: Any) -> int:
    aval = variable.aval
    return int(np.prod(aval.shape)) * getattr(aval.dtype, "itemsize", 8)


def _bytes_of(tree: PyTree) -> int:
    return sum(
        int(np.prod(leaf.shape)) * getattr(leaf.dtype, "itemsize", 8)
        for leaf in jax.tree.leaves(tree)
        if hasattr(leaf, "shape")
    )
