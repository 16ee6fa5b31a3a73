"""How a run ended."""

from dataclasses import dataclass
from typing import Literal

from ..models.theta import Theta
from .record import Record
from .snapshot import Snapshot
from .steps import TrainState

Status = Literal["finished", "interrupted", "diverged"]


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    snapshot: Snapshot
    best_theta: Theta
    history: list[Record]
    status: Status
    message: str

    @property
    def state(self) -> TrainState:
        return self.snapshot.state

    @property
    def seconds(self) -> float:
        return float(self.snapshot.seconds)

    @property
    def compile_seconds(self) -> float:
        return float(self.snapshot.compile_seconds)

    @property
    def tracking_seconds(self) -> float:
        return float(self.snapshot.tracking_seconds)
