"""The plan that keeps the memory of a step under a limit."""

from dataclasses import replace

from jax.sharding import Mesh

from ..errors import InputError
from ..least_squares.blocks import FLOAT, blocks_of
from ..least_squares.cost import Counted, formed_bytes
from ..least_squares.footprint import Demand
from ..memory import show_bytes
from ..optimizers.line_search import CANDIDATES
from ..parallel.plan import Plan
from .size import ConditionSize, Size

SAFETY = 0.95  # the share of the limit that is planned for: compilers are not exact
FEWEST_POINTS = 16  # at once and per device: below, recomputation takes longer than it saves
REMEDY = "use fewer points, free memory, or raise --memory-limit if you have set one"
GRADIENT_COPIES = 2  # of all rows of a condition, while they are multiplied to a Gramian
PRODUCTS = {  # of the Jacobian with itself, and what they are called
    Demand.KERNEL: "kernel",
    Demand.GRAMIAN: "Gramian",
    Demand.SKETCH: "kernel",
}
ROWS_SHARE = 0.75  # of the memory, for streamed rows; the rest is for their products


def choose(size: Size, limit: int, mesh: Mesh | None = None) -> Plan:
    """The fastest plan that stays under the limit: hold all, form less at once, hold nothing."""
    whole = Plan(mesh=mesh)
    if peak(size, whole) <= SAFETY * limit:
        return whole
    room = int(SAFETY * limit) - size.fixed_bytes
    plan = _hold(size, room, whole) or _stream(size, room, whole)
    if plan is None:
        raise InputError(
            f"a step needs more than {show_bytes(limit)}: {show_bytes(size.fixed_bytes)} for the "
            f"solver's matrices (N = {size.rows:,} rows, P = {size.parameters:,} parameters) and "
            f"the optimizer's state alone; {REMEDY}"
        )
    return plan


def peak(size: Size, plan: Plan) -> int:
    """The most memory that a step takes on one device."""
    return size.fixed_bytes + max(phases(size, plan).values())


def phases(size: Size, plan: Plan) -> dict[str, int]:
    """The bytes of each part of a step on one device, beside what is allocated throughout."""
    sizes = [(c, plan.chunk(c.points)) for c in size.conditions.values()]
    candidates = plan.candidates_at_once or CANDIDATES
    found = {
        "linearize": max(n * c.linearize_bytes for c, n in sizes) + _held_bytes(size, plan),
        "line search": candidates * max(n * c.forward_bytes for c, n in sizes),
    }
    if size.demand is Demand.LAYERS:
        found["layers"] = max(n * _point_bytes(size, c, plan) for c, n in sizes)
    elif size.demand in PRODUCTS:
        streamed = max(n * _point_bytes(size, c, plan) for c, n in sizes)
        rows = size.held_bytes if plan.held else streamed
        found[PRODUCTS[size.demand]] = rows + _formed_bytes(size, plan)
        if size.footprint.whitens:
            found["whitened"] = rows + _whitened_bytes(size, plan)
    return {name: count // plan.devices for name, count in found.items()}


def _hold(size: Size, room: int, plan: Plan) -> Plan | None:
    """The plan that holds the Jacobian and does fewer points and gradients at once, if it fits."""
    left = room - _held_bytes(size, plan) // plan.devices
    if left < _gradient_bytes(size, plan) // plan.devices:
        return None
    most = max(_point_bytes(size, c, plan) for c in size.conditions.values())
    points = max(left, 0) * plan.devices // most
    if points < FEWEST_POINTS * plan.devices:
        return None
    return _share(size, room, left, replace(plan, points_at_once=points))


def _stream(size: Size, room: int, plan: Plan) -> Plan | None:
    """The plan that computes rows chunk by chunk, if it fits: most of the room is for rows."""
    plan = replace(plan, held=False)
    most = max(_point_bytes(size, c, plan) for c in size.conditions.values())
    points = int(max(room, 0) * ROWS_SHARE * plan.devices / most)
    if points < plan.devices:
        return None
    plan = replace(plan, points_at_once=points)
    return _share(size, room, int((1 - ROWS_SHARE) * room), plan)


def _share(size: Size, room: int, left: int, plan: Plan) -> Plan:
    """The plan with what is left divided among all that products form.

    A line search comes later and has all the room.
    """
    formed = len(_formed(size, plan)) + len(_slabs(size, plan))
    plan = replace(plan, working_bytes=left // formed if formed else None)
    each = phases(size, replace(plan, candidates_at_once=1))["line search"]
    return replace(plan, candidates_at_once=max(1, min(CANDIDATES, room // max(each, 1))))


def _held_bytes(size: Size, plan: Plan) -> int:
    """The bytes of the Jacobian, if it is held, and of the copy that products with vectors make."""
    copies = 2 if size.demand is Demand.PRODUCTS else int(size.demand in PRODUCTS)
    return copies * size.held_bytes if plan.held else 0


def _point_bytes(size: Size, condition: ConditionSize, plan: Plan) -> int:
    """The bytes for each point of a chunk, with results that are not held."""
    results = 0
    if size.demand is Demand.LAYERS:
        results = 2 * condition.layer_bytes
    elif size.demand is Demand.GRAMIAN and not plan.held:
        formed = GRADIENT_COPIES * FLOAT * condition.rows * size.parameters
        results = condition.block_bytes + formed
    elif size.demand in PRODUCTS and not plan.held:
        results = 2 * condition.block_bytes
    return condition.linearize_bytes + results


def _formed_bytes(size: Size, plan: Plan) -> int:
    """The bytes of all that products form from factors: compilers may keep all of it at once."""
    limit = plan.working_bytes
    formed = (n if limit is None else min(n, limit * plan.devices) for n in _formed(size, plan))
    return _gradient_bytes(size, plan) + sum(formed)


def _whitened_bytes(size: Size, plan: Plan) -> int:
    """The bytes of the gradients of all rows, formed and then whitened, all at once or in slabs."""
    limit = plan.working_bytes
    slabs = _slabs(size, plan)
    return 2 * sum(n if limit is None else min(n, limit * plan.devices) for n in slabs)


def _slabs(size: Size, plan: Plan) -> list[int]:
    """The bytes of the gradients that are whitened together, if any are.

    Those of all rows by one array of parameters, which may be cut, or those of the rows of one
    condition, which are cut where they are streamed.
    """
    if not size.footprint.whitens:
        return []
    conditions = size.conditions.values()
    if size.demand is Demand.GRAMIAN:
        is_whole = plan.held and plan.working_bytes is None
        rows = [(c.points if plan.held else plan.chunk(c.points)) * c.rows for c in conditions]
        each = [FLOAT * n * size.parameters for n in rows]
        return each if is_whole else [max(each)]
    blocks = blocks_of(next(iter(conditions)).blocks)
    return [FLOAT * size.rows * block.size for block in blocks]


def _gradient_bytes(size: Size, plan: Plan) -> int:
    """The bytes of gradients that a Gramian forms of a held Jacobian, condition by condition."""
    if not (size.demand is Demand.GRAMIAN and plan.held):
        return 0
    rows = max(c.points * c.rows for c in size.conditions.values())
    return GRADIENT_COPIES * FLOAT * rows * size.parameters


def _formed(size: Size, plan: Plan) -> list[int]:
    """The bytes of the gradients that are formed, per leaf and condition, and of the products of
    factors, per leaf and pair of conditions."""
    if size.demand not in (Demand.KERNEL, Demand.SKETCH):
        return []
    chunks = [Counted(c.blocks, plan.chunk(c.points) * c.rows) for c in size.conditions.values()]
    return formed_bytes(chunks)
