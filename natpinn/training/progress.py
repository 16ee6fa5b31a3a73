"""What callbacks see of a run."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from .record import Record
from .snapshot import Snapshot
from .steps import TrainState


@dataclass(frozen=True)
class Progress:
    """Where a run stands: what callbacks get.

    - `step`: the steps taken so far.
    - `seconds`: of training so far, without compilation and evaluation.
    - `metrics`: the record of the last evaluation, with `loss`, `validation_loss` and, where the
      solution is known, `l2` and `relative_l2`.
    - `evaluated`: whether that evaluation was at this very step.
    - `criterion`: the name of the metric that the best parameters make smallest.
    - `steps`, `budget`: the limits of the run; None where there is none.
    - `snapshot`: all that is needed to go on. Its arrays last until the next step: copy what is to
      be kept.

    A callback is a function of it; the run ends where one returns True.

        import natpinn

        def stop(progress):
            return progress.evaluated and progress.metrics["relative_l2"] < 1e-3

        natpinn.solve("poisson_2d", steps=3, callbacks=[stop], progress=False)
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
    def error(self) -> float:
        """The last L2 error; where the solution is not known, the last value of the criterion."""
        return self.metrics.get("l2", self.metrics.get(self.criterion, math.nan))

    @property
    def state(self) -> TrainState:
        """Parameters, optimizer state, key and step."""
        return self.snapshot.state


Callback = Callable[[Progress], object]  # returning True ends the run
