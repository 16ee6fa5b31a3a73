"""From a memory limit and a number of devices to a plan, checked against the compiled program."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from .. import memory
from ..errors import InputError
from ..least_squares.objective import LeastSquares
from ..memory import show_bytes
from ..models.theta import Theta
from ..optimizers.base import Optimizer
from ..parallel import processes as cluster
from ..parallel.devices import make_mesh, place
from ..parallel.plan import Plan
from ..parallel.threads import lapack_threads_for
from ..training.cache import use_compilation_cache
from ..training.steps import Batches, Work, advance, start
from . import fit as planner
from . import size as sizes
from .size import Size

WORTH_CHECKING = 0.5  # of the limit: what is predicted to stay below is not checked
LESS_MEMORY = 0.7  # of what a step takes now: the limit that is suggested
ATTEMPTS = 6  # to find a plan whose program stays under the limit


@dataclass(frozen=True)
class Planned:
    """A plan and what is known about it."""

    plan: Plan
    size: Size
    available: int  # what a step may take on one device
    predicted: int
    compiled: int | None  # by the program's own account; None if that was not needed


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
    threads = lapack_threads_for(size.footprint.side(size.rows, size.parameters))
    target, share = step_memory(memory_limit), 1.0
    for _ in range(ATTEMPTS):
        plan = replace(planner.choose(size, int(share * target), mesh), lapack_threads=threads)
        predicted = planner.peak(size, plan)
        if predicted < WORTH_CHECKING * target and not always_compile:
            return Planned(plan, size, target, predicted, None)
        compiled = program_bytes(objective.planned(plan), theta, optimizer)
        memory.release()
        available = step_memory(memory_limit)  # less than before, by the compiled program
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
    """What is known about a plan that was made before."""
    size = sizes.size_of(objective.planned(Plan(mesh=plan.mesh)), theta, optimizer)
    return Planned(plan, size, memory.free_bytes(), planner.peak(size, plan), None)


def step_memory(memory_limit: int | None) -> int:
    """The bytes that a step may take: all that is free, or what the limit leaves.

    The first of several processes decides, since all of them run one program.
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
