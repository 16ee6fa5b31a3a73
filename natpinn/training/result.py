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
    """How a run ended.

    - `snapshot`: the run at its last step, from which another call of `natpinn.train` goes on.
    - `best_theta`: the parameters of the best evaluation, which the criterion decides.
    - `returned`: the record of that evaluation. Where a run was stopped early and its optimizer
      depends on the length of a run, that may be of some more steps, taken aside.
    - `history`: one record for each evaluation.
    - `status`: "finished", "interrupted" by Ctrl-C or SIGTERM, or "diverged".
    - `message`: why the run was interrupted or diverged; else empty.
    """

    snapshot: Snapshot
    best_theta: Theta
    returned: Record
    history: list[Record]
    status: Status
    message: str

    @property
    def state(self) -> TrainState:
        """Parameters, optimizer state, key and step after the last step."""
        return self.snapshot.state

    @property
    def seconds(self) -> float:
        """Seconds of training, without compilation, evaluation and tracking."""
        return float(self.snapshot.seconds)

    @property
    def compile_seconds(self) -> float:
        """Seconds until the first step: compilation, and the first evaluation."""
        return float(self.snapshot.compile_seconds)

    @property
    def tracking_seconds(self) -> float:
        """Seconds that tracking the kernel's spectrum took."""
        return float(self.snapshot.tracking_seconds)
