"""The number of points of a step where a condition gives none.

It follows from the network, the dimension and the memory.
"""

from dataclasses import replace
from typing import Any

import jax

from ..least_squares.footprint import Demand
from ..optimizers.base import Optimizer
from ..parallel import processes as cluster
from ..parallel.plan import Plan
from ..problems.problem import Problem
from . import fit as planner
from . import size as sizes
from .planned import step_memory
from .size import Size

POINTS = 100  # times d², for a domain with a volume in d dimensions
MOST_POINTS = 3000
SURFACE_SHARE = 0.2  # of that number, for a domain of lower dimension
FEWEST_POINTS = 20  # fewer are not proposed: the plan then has to save memory
SHRINK = 0.8  # the factor of points while a step is too large
CPU_OPERATIONS, GPU_OPERATIONS = 5e9, 3e12  # of a step, which then takes about a tenth of a second
LONG = 10  # times as many operations: the user gets a message


def propose(
    problem: Problem, model: Any, optimizer: Optimizer, memory_limit: int | None = None
) -> dict[str, int]:
    """A number of points for each condition that gives none.

    They grow with the dimension, as long as they make no more rows than the model has parameters, a
    step stays short, and the whole Jacobian stays in memory, together with that of all other
    conditions.
    """
    if all(c.is_sized for c in problem.conditions.values()):
        return {}
    limit = planner.SAFETY * step_memory(memory_limit)
    objective, theta = problem.objective(model)
    size = sizes.size_of(objective, theta, optimizer)
    wanted = float(min(POINTS * problem.domain.dimension**2, MOST_POINTS))
    while True:
        points = _shares(problem, wanted)
        size = sizes.resized(size, points, theta, optimizer)
        own = replace(size, conditions={name: size.conditions[name] for name in points})
        is_small = own.rows <= own.parameters and _operations(own) <= _most_operations()
        if (is_small and planner.peak(size, Plan()) <= limit) or wanted <= FEWEST_POINTS:
            return cluster.from_first(points)  # processes differ in their free memory
        wanted *= SHRINK


def advise(problem: Problem, size: Size) -> str:
    """A message where a step is far longer than with proposed points; otherwise an empty text."""
    times = _operations(size) / _most_operations()
    if size.demand is not Demand.KERNEL or size.rows > size.parameters or times < LONG:
        return ""
    free = [name for name, c in problem.conditions.items() if c.domain.size is None]
    settings = " ".join(f"--set points.{name}=none" for name in free)
    return (
        f"steps are {times:.0f} times as long as natpinn would make them on this "
        f"{jax.default_backend().upper()}; to let it choose how many points they have: {settings}"
    )


def _shares(problem: Problem, wanted: float) -> dict[str, int]:
    return {
        name: max(1, round(wanted if c.domain.has_volume else SURFACE_SHARE * wanted))
        for name, c in problem.conditions.items()
        if not c.is_sized
    }


def _most_operations() -> float:
    return CPU_OPERATIONS if jax.default_backend() == "cpu" else GPU_OPERATIONS


def _operations(size: Size) -> float:
    """The operations of one step of a natural gradient, whatever the optimizer."""
    kernel = sum(cost.operations for cost in sizes.kernel_costs(size).values())
    return sizes.linearize_flops(size, Plan()) + kernel + size.rows**3 / 3
