"""What callbacks see of a run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .record import Record
from .snapshot import Snapshot
from .steps import TrainState


@dataclass(frozen=True)
class Progress:
    """Where a run stands; `evaluated` says whether `metrics` are of this very step.

    The arrays of `snapshot` last until the next step: copy what is to be kept.
    """

    step: int
    seconds: float
    metrics: Record
    evaluated: bool
    criterion: str
    steps: int | None
    budget: float | None
    snapshot: Snapshot

    @property
    def state(self) -> TrainState:
        return self.snapshot.state


Callback = Callable[[Progress], Any]  # returning True ends the run
