"""The net and the points of a step, where nobody has said what they are.

Both follow from the operations that a step may take, and these from what the device reaches in the
run's time. docs/auto.md has the measurements behind the numbers.
"""

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import jax

from ..least_squares.footprint import Demand
from ..optimizers.base import Optimizer
from ..parallel import processes as cluster
from ..parallel.plan import Plan
from ..problems.problem import Problem
from ..training.limits import Limits
from . import fit as planner
from . import size as sizes
from .forecast import LINEARIZE_COST, SYSTEM_COST
from .planned import step_memory
from .size import Size
from .speed import operations_per_second

OPERATIONS = 4.5e9  # of a step in a run of REFERENCE operations
REFERENCE = 930 * OPERATIONS  # a minute on two cores
SHARE_OF_STEPS = 2 / 3  # of the growth of a run, as a power: the rest is more steps
EFFICIENCY = 0.3  # of a step, in proportion to products of matrices
GPU_OPERATIONS = 4e11  # of a step on a GPU, where a run's time is not known
SMALLEST, LARGEST = 2**-6, 2**14  # of a run, in REFERENCE operations

ROWS_PER_PARAMETER = 0.9  # with a net that is proposed; at most 1 with another
POINTS, MOST_POINTS = 200, 4000  # times d², for a domain with a volume; both grow with the run
SURFACE_SHARE = 0.2  # of that number, for a domain of lower dimension
FEWEST_POINTS = 20  # fewer are not proposed: the plan then has to save memory
SHRINK = 0.9  # the factor of points while a step is too large
LAYERS, NARROWEST, WIDEST, STEP = 3, 12, 256, 2  # of the net: hidden layers, and their widths
FEWEST_PARAMETERS = 1000  # however few rows there are
FEW_ROWS, PATIENCE = 0.1, 4.0  # for each parameter; how many times as long steps then may be
LONG = 10  # times as many operations: the user gets a message


@dataclass(frozen=True)
class Worth:
    """The size of a run: how many operations a step is worth, and why."""

    growth: float  # of the whole run, in REFERENCE operations, a power of two
    reason: str

    @classmethod
    def of(cls, limits: Limits) -> "Worth":
        """From the time that a run has and the speed of the device, or from its kind alone."""
        if limits.steps is not None or limits.budget is None:
            return cls.by_kind()
        speed = cluster.from_first({"speed": round(operations_per_second())})["speed"]
        whole = min(speed * EFFICIENCY * limits.budget / REFERENCE, LARGEST)
        growth = 2.0 ** round(math.log2(max(whole, SMALLEST)))
        reason = f"{limits.budget:g} s at {speed / 1e9:,.0f} GFLOP/s as measured"
        return cls(growth, reason)

    @classmethod
    def by_kind(cls) -> "Worth":
        """From the kind of the device alone, so that sizes do not depend on the clock."""
        kind = jax.default_backend()
        operations = OPERATIONS if kind == "cpu" else GPU_OPERATIONS
        reason = f"what a step usually has on a {kind.upper()}"
        return cls((operations / OPERATIONS) ** (1 / SHARE_OF_STEPS), reason)

    @property
    def operations(self) -> float:
        """Of one step."""
        return OPERATIONS * self.growth**SHARE_OF_STEPS

    @property
    def points(self) -> float:
        """The factor of the most points: rows grow with the cube root of operations."""
        return max(1.0, self.growth**SHARE_OF_STEPS) ** (1 / 3)


def propose_widths(problem: Problem, worth: Worth) -> tuple[int, ...]:
    """The hidden layers of natpinn's own net: the widest whose steps are worth their operations.

    A step has 0.9 rows for each parameter, or as many as are given. Where so few rows are enough
    that a smaller net has as many parameters, it is that one. No net is narrower than half of the
    dimension.
    """
    dimension, outputs = problem.domain.dimension, problem.values
    conditions = problem.conditions.values()
    given = all(c.is_sized for c in conditions)
    shares = [1.0 if c.domain.has_volume else SURFACE_SHARE for c in conditions]
    most = _most_points(dimension, worth)
    needed = outputs * (sum(c.points for c in conditions) if given else most * sum(shares))

    def parameters(width: int) -> int:
        layers = pairwise((dimension, *[width] * LAYERS, outputs))
        return sum((before + 1) * after for before, after in layers)

    def is_worth(width: int) -> bool:
        count = parameters(width)
        rows = needed if given else min(needed, ROWS_PER_PARAMETER * count)
        return system_operations(rows, count) <= worth.operations

    enough = max(FEWEST_PARAMETERS, needed / ROWS_PER_PARAMETER)
    width = max(NARROWEST, STEP * (dimension // (2 * STEP)))
    while width < WIDEST and parameters(width) < enough and is_worth(width + STEP):
        width += STEP
    return (width,) * LAYERS


def propose_points(
    problem: Problem,
    model: Any,
    optimizer: Optimizer,
    worth: Worth,
    memory_limit: int | None = None,
    rows_per_parameter: float = 1.0,
) -> dict[str, int]:
    """A number of points for each condition that gives none.

    They grow with the dimension and with what a step is worth, as long as they make no more rows
    than so many for each parameter of the model, and the whole Jacobian stays in memory, together
    with that of all other conditions. A net that was given may be larger than a step is worth: few
    rows for many parameters are worth longer steps.
    """
    if all(c.is_sized for c in problem.conditions.values()):
        return {}
    limit = planner.SAFETY * step_memory(memory_limit)
    objective, theta = problem.objective(model)
    size = sizes.size_of(objective, theta, optimizer)
    wanted = _most_points(problem.domain.dimension, worth)
    while True:
        points = _shares(problem, wanted)
        size = sizes.resized(size, points, theta, optimizer)
        own = replace(size, conditions={name: size.conditions[name] for name in points})
        is_worth = own.rows <= rows_per_parameter * own.parameters
        has_few = own.rows < FEW_ROWS * own.parameters
        is_worth &= step_operations(own) <= worth.operations * (PATIENCE if has_few else 1.0)
        if (is_worth and planner.peak(size, Plan()) <= limit) or wanted <= FEWEST_POINTS:
            return cluster.from_first(points)  # processes differ in their free memory
        wanted *= SHRINK


def advise(problem: Problem, size: Size) -> str:
    """A message where a step is far longer than with proposed points; otherwise an empty text."""
    times = step_operations(size) / Worth.by_kind().operations
    if size.demand is not Demand.KERNEL or size.rows > size.parameters or times < LONG:
        return ""
    free = [name for name, c in problem.conditions.items() if c.domain.size is None]
    settings = " ".join(f"--set points.{name}=none" for name in free)
    return (
        f"steps are {times:.0f} times as long as natpinn would make them on this "
        f"{jax.default_backend().upper()}; to let it choose how many points they have: {settings}"
    )


def _most_points(dimension: int, worth: Worth) -> float:
    return worth.points * min(POINTS * dimension**2, MOST_POINTS)


def _shares(problem: Problem, wanted: float) -> dict[str, int]:
    return {
        name: max(1, round(wanted if c.domain.has_volume else SURFACE_SHARE * wanted))
        for name, c in problem.conditions.items()
        if not c.is_sized
    }


def step_operations(size: Size) -> float:
    """The operations of one accurate step, whatever the optimizer, as of products of matrices."""
    linearize = LINEARIZE_COST * sizes.linearize_flops(size, Plan())
    return linearize + system_operations(size.rows, size.parameters)


def system_operations(rows: float, parameters: float) -> float:
    """The operations of an accurate solve: a kernel, two Cholesky factors, one whitening."""
    side, others = sorted((rows, parameters))
    return SYSTEM_COST * (3 * side**2 * others + (3 + 1 / 3) * side**3)
