"""A plan in words and numbers."""

from typing import Any

from ..least_squares.blocks import FLOAT
from ..least_squares.footprint import Demand
from ..memory import show_bytes
from . import fit as planner
from . import size as sizes
from .planned import Planned
from .proposal import Worth
from .size import Size


def describe(planned: Planned, worth: Worth | None = None) -> dict[str, Any]:
    """Sizes, bytes, operations and strategy, as numbers and words."""
    size, plan = planned.size, planned.plan
    pairs = sizes.kernel_costs(size) if size.demand is Demand.KERNEL else {}
    is_primal = size.demand is Demand.GRAMIAN
    products, solve = sizes.system_flops(size)
    return {
        "rows": {name: c.points * c.rows for name, c in size.conditions.items()},
        "parameters": size.parameters,
        "proposed": None if worth is None else {"flops": worth.operations, "for": worth.reason},
        "devices": plan.devices,
        "strategy": strategy(planned),
        "held": plan.held,
        "points_at_once": plan.points_at_once,
        "working_bytes": plan.working_bytes,
        "candidates_at_once": plan.candidates_at_once,
        "bytes": {
            "available": planned.available,
            "jacobian_explicit": size.explicit_bytes,
            "jacobian_held": size.held_bytes,
            "system": FLOAT * (size.parameters if is_primal else size.rows) ** 2,
            "state_and_solver": size.fixed_bytes,
            "phases": planner.phases(size, plan),
            "predicted_peak": planned.predicted,
            "compiled_peak": planned.compiled,
        },
        "flops": {
            "linearize": sizes.linearize_flops(size, plan),
            "system": products,
            "solve": solve,
            "whiten": sizes.whiten_flops(size),
        },
        "space": "parameters" if is_primal else "rows",
        "sketch_columns": size.footprint.columns or None,
        "products": [
            {
                "rows": left,
                "columns": right,
                "from_factors": int(cost.from_factors),
                "from_gradients": int(cost.from_gradients),
            }
            for (left, right), cost in pairs.items()
        ],
    }


def strategy(planned: Planned) -> str:
    """The plan in one sentence."""
    plan, size = planned.plan, planned.size
    if size.demand is Demand.GRADIENT:
        what = "no Jacobian: this optimizer needs gradients of the loss only"
    elif size.demand is Demand.LAYERS:
        what = "no Jacobian: this optimizer needs sums over what layers multiply, and gradients"
    elif size.demand is Demand.PRODUCTS and not plan.held:
        what = "no Jacobian: it is multiplied with vectors by forward and reverse mode"
    elif not plan.held:
        is_once = size.demand in (Demand.GRAMIAN, Demand.SKETCH)
        by = "chunk by chunk" if is_once else "pair by pair of chunks"
        what = f"streamed: the Jacobian is not held; its rows are computed {by}"
    elif plan.working_bytes is None:
        what = "whole: the Jacobian is held, as layer factors where these are smaller"
    else:
        what = "parameter blocks: layer factors are held, gradients formed from them in slices"
    if plan.points_at_once is not None and plan.points_at_once < size.most_points:
        what += f"; {plan.points_at_once:,} points at once"
    if plan.working_bytes is not None:
        what += f"; {show_bytes(plan.working_bytes)} of gradients per leaf at once"
    if plan.devices > 1:
        what += f"; points, then parameters, shared by {plan.devices} devices"
    return what


def explain(planned: Planned, worth: Worth | None = None) -> str:
    """The plan as text, and what a step is worth where its sizes were not all given."""
    known = describe(planned)
    counts, operations = known["bytes"], known["flops"]
    rows = ", ".join(f"{n:,} {name}" for name, n in known["rows"].items())
    compiled = "not compiled" if planned.compiled is None else show_bytes(planned.compiled)
    parts = ", ".join(
        f"{name} {show_bytes(n)}" for name, n in planner.phases(planned.size, planned.plan).items()
    )
    steps = [f"{_show_flops(operations['linearize'])} to linearize"]
    if operations["solve"]:
        steps.append(f"{_show_flops(operations['system'])} {_made_of(planned.size)}")
        steps.append(f"{_show_flops(operations['solve'])} to solve")
    if operations["whiten"]:
        steps.append(f"{_show_flops(operations['whiten'])} more where the kernel has lost digits")
    lines = [
        f"N = {planned.size.rows:,} rows ({rows}), P = {planned.size.parameters:,} parameters",
        f"sizes      {_chosen_for(worth)}",
        f"strategy   {known['strategy']}",
        f"Jacobian   {show_bytes(counts['jacobian_explicit'])} with all gradients formed, "
        f"{show_bytes(counts['jacobian_held'])} as it would be held",
        f"memory     {show_bytes(counts['state_and_solver'])} for the solver's matrices and the "
        f"optimizer's state; beside them {parts}",
        f"peak       {show_bytes(planned.predicted)} predicted from shapes, {compiled} by the "
        f"compiled program, {show_bytes(planned.available)} available",
        f"operations {', '.join(steps)}, per step",
    ]
    for pair in known["products"]:
        lines.append(
            f"  {pair['rows']} × {pair['columns']}: {_show_flops(pair['from_factors'])} from layer "
            f"factors, {_show_flops(pair['from_gradients'])} from gradients"
        )
    return "\n".join(lines)


def _chosen_for(worth: Worth | None) -> str:
    if worth is None:
        return "as given"
    return f"for accurate steps of up to {_show_flops(int(worth.operations))}: {worth.reason}"


def _made_of(size: Size) -> str:
    if size.demand is Demand.GRAMIAN:
        return "for the Gramian"
    if size.demand is Demand.SKETCH:
        return f"to multiply the kernel with {size.footprint.columns:,} vectors"
    return "for the kernel"


def _show_flops(count: int) -> str:
    for unit, name in ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:,} FLOP"
