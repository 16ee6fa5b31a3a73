"""How long a step should take on a CPU that does nothing else."""

import time

import numpy as np
from threadpoolctl import threadpool_limits

from ..least_squares.footprint import Demand
from ..parallel.plan import Plan
from . import size as sizes
from .planned import Planned

SIDE, PRODUCTS = 256, 20  # of matrix products that measure a core: half a millisecond each
SYSTEM_COST = 1.2  # a kernel's and a solve's operations, in operations of such a product
LINEARIZE_COST = 12  # an operation of a linearization, among them tanh
STEP_SECONDS = 1e-3  # of a step in which next to nothing is computed


def expected_step_seconds(planned: Planned) -> float | None:
    """The time of a step on one core of this CPU, within a factor of about two.

    It comes from operations and from the fastest of some products of matrices, so it is hardly
    longer on a busy machine. None where nothing is known: on a GPU, on several devices, and for
    steps without a system to solve.
    """
    size, plan = planned.size, planned.plan
    if plan.backend != "cpu" or plan.devices > 1 or not plan.held:
        return None
    if size.demand not in (Demand.KERNEL, Demand.GRAMIAN):
        return None
    linearize = sizes.linearize_flops(size, Plan())
    system = sum(sizes.system_flops(size)) + sizes.whiten_flops(size)
    operations = LINEARIZE_COST * linearize + SYSTEM_COST * system
    return STEP_SECONDS + operations / _operations_per_second()


def _operations_per_second() -> float:
    """What one core reaches in a product of matrices, undisturbed."""
    matrix = np.ones((SIDE, SIDE))
    times = []
    with threadpool_limits(limits=1, user_api="blas"):
        for _ in range(PRODUCTS):
            started = time.perf_counter()
            np.matmul(matrix, matrix)
            times.append(time.perf_counter() - started)
    return 2 * SIDE**3 / min(times)
