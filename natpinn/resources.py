"""From a memory limit and a number of devices to a plan, checked against the compiled program."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from . import cluster, memory, planner, sizes
from .errors import InputError
from .kernel import FLOAT
from .memory import show_bytes
from .models import Theta
from .objective import LeastSquares
from .optimizers import Demand, Optimizer
from .plan import Plan, make_mesh, place
from .sizes import Size
from .steps import Batches, Work, advance, start, use_compilation_cache

WORTH_CHECKING = 0.5  # of the limit: what is predicted to stay below is not compiled twice
PLAN_NUMBERS = ("held", "points_at_once", "working_bytes", "candidates_at_once")
LESS_MEMORY = 0.7  # of what was not enough
ATTEMPTS = 6  # to find a plan whose program stays under the limit


@dataclass(frozen=True)
class Planned:
    """A plan and what is known about it."""

    plan: Plan
    size: Size
    available: int  # what a step may take on one device
    predicted: int
    compiled: int | None  # what the program says itself; None if it was not asked


def plan_step(
    objective: LeastSquares,
    theta: Theta,
    optimizer: Optimizer,
    memory_limit: int | None = None,
    devices: int | str | None = None,
    always_compile: bool = False,
) -> Planned:
    """The fastest plan under the limit, which is by default what the device has free.

    The plan comes from shapes alone. Where it may be close to the limit, the program is compiled
    and asked how much it takes; if that is too much, less is planned for.
    """
    mesh = make_mesh(devices)
    size = sizes.size_of(objective.planned(Plan(mesh=mesh)), theta, optimizer)
    always_compile = always_compile or memory_limit is not None
    target, share = step_memory(memory_limit), 1.0
    for _ in range(ATTEMPTS):
        plan = planner.choose(size, int(share * target), mesh)
        predicted = planner.peak(size, plan)
        if predicted < WORTH_CHECKING * target and not always_compile:
            return Planned(plan, size, target, predicted, None)
        compiled = program_bytes(objective.planned(plan), theta, optimizer)
        memory.release()
        available = step_memory(memory_limit)  # less than before: a program takes memory too
        if compiled <= available:
            return Planned(plan, size, available, predicted, compiled)
        share *= min(0.9, available / compiled)
        target = available
    raise InputError(
        f"no plan was found that takes less than {show_bytes(target)}: {planner.REMEDY}"
    )


def smaller_limit(planned: Planned) -> int | None:
    """A memory limit under which a step takes less than it did, if there is one."""
    step = int(LESS_MEMORY * (planned.compiled or planned.predicted))
    try:
        planner.choose(planned.size, step, planned.plan.mesh)
    except InputError:
        return None
    return step + memory.used_bytes()


def keep_plan(objective: LeastSquares, theta: Theta, optimizer: Optimizer, plan: Plan) -> Planned:
    """A plan that was made before."""
    size = sizes.size_of(objective.planned(Plan(mesh=plan.mesh)), theta, optimizer)
    return Planned(plan, size, memory.free_bytes(), planner.peak(size, plan), None)


def pack_plan(plan: Plan) -> dict[str, np.ndarray]:
    """A plan as arrays, for a checkpoint; the devices are chosen anew."""
    numbers = {name: getattr(plan, name) for name in PLAN_NUMBERS}
    return {name: np.array(-1 if n is None else int(n)) for name, n in numbers.items()}


def unpack_plan(packed: dict[str, np.ndarray], mesh: Mesh | None) -> Plan:
    numbers = {name: int(packed[name]) for name in PLAN_NUMBERS}
    limits = {name: None if n < 0 else n for name, n in numbers.items() if name != "held"}
    return Plan(held=bool(numbers["held"]), mesh=mesh, **limits)


def step_memory(memory_limit: int | None) -> int:
    """What a step may take: all that is free, or what the limit leaves.

    Of several processes the first says so: all of them run one program.
    """
    if memory_limit is None:
        return cluster.from_first({"free": memory.free_bytes()})["free"]
    used = cluster.from_first({"used": memory.used_bytes()})["used"]
    if used >= memory_limit:
        raise InputError(
            f"{show_bytes(used)} are in use before training starts, and the memory limit is "
            f"{show_bytes(memory_limit)}: raise --memory-limit"
        )
    return memory_limit - used


def program_bytes(objective: LeastSquares, theta: Theta, optimizer: Optimizer) -> int:
    """The memory of the compiled program of a step, on one device, by its own account."""
    use_compilation_cache()
    state = start(optimizer, theta, jax.random.key(0))
    arguments = place((Work(optimizer, Batches(objective), jnp.array(1)), state), objective.plan)
    program: Any = advance  # as Equinox wraps it
    stats = program.lower(*arguments).compile().compiled.memory_analysis()
    shared = stats.alias_size_in_bytes
    return (
        stats.temp_size_in_bytes
        + stats.argument_size_in_bytes
        + stats.output_size_in_bytes
        - shared
    )


def describe(planned: Planned) -> dict[str, Any]:
    """Sizes, bytes, operations and strategy, as numbers and words."""
    size, plan = planned.size, planned.plan
    has_kernel = size.demand is Demand.KERNEL and not size.is_primal
    pairs = sizes.kernel_flops(size) if has_kernel and size.sketch_columns is None else {}
    products, solve = sizes.system_flops(size)
    return {
        "rows": {name: c.points * c.rows for name, c in size.conditions.items()},
        "parameters": size.parameters,
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
            "system": FLOAT * (size.parameters if size.is_primal else size.rows) ** 2,
            "state_and_solver": size.fixed_bytes,
            "phases": planner.phases(size, plan),
            "predicted_peak": planned.predicted,
            "compiled_peak": planned.compiled,
        },
        "flops": {
            "linearize": sizes.linearize_flops(size, plan),
            "system": products,
            "solve": solve,
        },
        "space": "parameters" if size.is_primal else "rows",
        "sketch_columns": size.sketch_columns,
        "products": [
            {"rows": left, "columns": right, "from_factors": structured, "from_gradients": explicit}
            for (left, right), (structured, explicit) in pairs.items()
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
        is_once = size.is_primal or size.sketch_columns is not None
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


def explain(planned: Planned) -> str:
    """The plan for people."""
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
    lines = [
        f"N = {planned.size.rows:,} rows ({rows}), P = {planned.size.parameters:,} parameters",
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


def _made_of(size: Size) -> str:
    if size.is_primal:
        return "for the Gramian"
    if size.sketch_columns is None:
        return "for the kernel"
    return f"to multiply it with {size.sketch_columns:,} vectors"


def _show_flops(count: int) -> str:
    for unit, name in ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:,} FLOP"
