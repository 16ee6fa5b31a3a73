"""The spectrum of the kernel K = J Jᵀ: its effective dimension, its condition, its ends."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..checks import whole
from ..errors import unknown
from .steps import Batches, TrainState

Quantity = Callable[[Float[Array, " n"], Float[Array, ""]], Float[Array, ""]]


def effective_dimension(
    eigenvalues: Float[Array, " n"], damping: Float[Array, ""]
) -> Float[Array, ""]:
    """tr(K (K + λI)⁻¹) = Σ λᵢ/(λᵢ + λ), where round-off below zero counts as zero."""
    positive = eigenvalues.clip(0)
    return (positive / (positive + damping)).sum()


def condition_number(
    eigenvalues: Float[Array, " n"], damping: Float[Array, ""]
) -> Float[Array, ""]:
    """That of K + λI; an eigenvalue of K below zero is round-off."""
    return (eigenvalues[-1] + damping) / (eigenvalues[0].clip(0) + damping)


QUANTITIES: dict[str, Quantity] = {
    "effective_dimension": effective_dimension,
    "condition_number": condition_number,
    "largest_eigenvalue": lambda eigenvalues, damping: eigenvalues[-1],
    "smallest_eigenvalue": lambda eigenvalues, damping: eigenvalues[0],
}


@dataclass(frozen=True)
class Tracking:
    """The quantities of the spectrum that are recorded, at one evaluation in `every`."""

    names: Sequence[str]
    every: int = 1

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in QUANTITIES:
                raise unknown("quantity to track", name, QUANTITIES)
        whole(self.every, "track.every")

    def __call__(self, batches: Batches, state: TrainState, damping: float) -> dict[str, float]:
        """The quantities for the kernel of the batch that the coming step will see."""
        eigenvalues = kernel_spectrum(batches, state)
        found = {n: QUANTITIES[n](eigenvalues, jnp.array(damping)) for n in self.names}
        return {name: float(value) for name, value in found.items()}


@eqx.filter_jit
def kernel_spectrum(batches: Batches, state: TrainState) -> Float[Array, " n"]:
    """The eigenvalues of J Jᵀ in ascending order, without the zeros of padding rows."""
    batch, _ = batches.at(state)
    eigenvalues = jnp.linalg.eigvalsh(batch.linearize(state.theta).kernel())
    return eigenvalues[batch.padding(state.theta) :]
