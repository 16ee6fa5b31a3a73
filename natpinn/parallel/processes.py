"""Several processes, on one host or many, as one run."""

import os

import jax
from jax.experimental import multihost_utils

from ..errors import InputError

LAUNCHERS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")  # what they say of their processes


def join() -> None:
    """Join the other processes of this run, where the environment says that there are some.

    By hand: JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID. Under srun or mpirun
    nothing needs to be said.
    """
    if jax.distributed.is_initialized():
        return
    if "JAX_COORDINATOR_ADDRESS" in os.environ:
        address = os.environ["JAX_COORDINATOR_ADDRESS"]
        _initialize(address, _number("JAX_NUM_PROCESSES"), _number("JAX_PROCESS_ID"))
    elif any(int(os.environ.get(name, 1)) > 1 for name in LAUNCHERS):
        _initialize()


def is_first() -> bool:
    """Whether this is the process that writes and prints."""
    return jax.process_index() == 0


def from_first(numbers: dict[str, int]) -> dict[str, int]:
    """The same numbers in every process: those of the first."""
    if jax.process_count() == 1:
        return numbers
    return {k: int(n) for k, n in multihost_utils.broadcast_one_to_all(numbers).items()}


def _initialize(
    address: str | None = None, processes: int | None = None, number: int | None = None
) -> None:
    try:
        jax.distributed.initialize(address, processes, number)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"the processes of this run cannot find each other: {reason}") from error


def _number(name: str) -> int:
    value = os.environ.get(name, "")
    if not value.isdecimal():
        raise InputError(
            f"JAX_COORDINATOR_ADDRESS is set, so {name} must be a number, got {value!r}: every "
            f"process needs the address, the number of processes and its own number from 0"
        )
    return int(value)
