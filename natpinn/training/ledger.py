"""What a run has accumulated."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..parallel.devices import on_this_process
from .evaluation import evaluation_after, is_scheduled
from .record import Record
from .result import Status, TrainResult
from .snapshot import Snapshot
from .steps import Outcome, TrainState, copied


class Ledger:
    """What a run has accumulated: its state, its records, its best parameters and its clocks."""

    def __init__(
        self, snapshot: Snapshot, history: Sequence[Mapping[str, float]], criterion: str
    ) -> None:
        self.state = snapshot.state
        self.step = int(snapshot.state.step)
        self.history = [Record(record) for record in history]
        self.next_evaluation = evaluation_after(self.step)
        self.criterion = criterion  # the name of the metric that decides which parameters are best
        self.best_theta = snapshot.best_theta
        self.best = float(snapshot.best)  # the criterion of the best parameters
        self.seconds = float(snapshot.seconds)  # of training alone
        self.seconds_per_step = math.inf  # in the last call; not known before the first
        self.compile_seconds = float(snapshot.compile_seconds)
        self.tracking_seconds = float(snapshot.tracking_seconds)
        self._aside: tuple[TrainState, Record] | None = None
        self.status: Status = "finished"
        self.message = ""

    def book(self, state: TrainState, outcome: Outcome, seconds: float) -> None:
        """Add the steps of one call, which took so many seconds."""
        taken = int(outcome.taken)
        self.state = state
        self.step += taken
        self.seconds += seconds
        self.seconds_per_step = seconds / max(1, taken)

    def record(self, metrics: dict[str, float]) -> None:
        """Add what was measured of the present parameters, which may be the best so far."""
        self.history.append(Record(step=self.step, seconds=self.seconds, **metrics))
        self.next_evaluation = evaluation_after(self.step)
        if is_scheduled(self.step) and self._last_is_better:
            value = self._value(self.history[-1])
            self.best_theta = copied(self.state.theta)
            self.best = value if math.isfinite(value) else math.inf

    def put_aside(self, state: TrainState, metrics: dict[str, float]) -> None:
        """Keep what steps after an early end have reached, beside the run itself."""
        self._aside = state, Record(step=int(state.step), seconds=self.seconds, **metrics)

    def end(self, status: Status, message: str) -> None:
        """Say why the run ends, where its limits are not the reason."""
        self.status, self.message = status, message

    @property
    def has_moved(self) -> bool:
        """Whether any step was taken rather than rejected."""
        return int(self.state.events.rejected) < self.step

    @property
    def is_lost(self) -> bool:
        """Whether the last criterion is not finite, though an earlier one was."""
        return math.isfinite(self.best) and not math.isfinite(self._value(self.history[-1]))

    def snapshot(self) -> Snapshot:
        clocks = (self.seconds, self.compile_seconds, self.tracking_seconds)
        numbers = map(np.asarray, (self.best, *clocks))
        return Snapshot(self.state, self.best_theta, *numbers)

    def result(self) -> TrainResult:
        """How the run ended.

        Its last parameters may be the best, at a step that is not scheduled, or those of steps that
        were put aside. The snapshot knows nothing of either, so that a resumed run equals one that
        never stopped.
        """
        snapshot = on_this_process(self.snapshot())
        last_is_best = not is_scheduled(self.step) and self._last_is_better
        best_theta = snapshot.state.theta if last_is_best else snapshot.best_theta
        returned = self.history[-1] if last_is_best else self._best_record
        if self._aside is not None and self._value(self._aside[1]) < self._value(returned):
            state, returned = self._aside
            best_theta = on_this_process(state.theta)
        return TrainResult(snapshot, best_theta, returned, self.history, self.status, self.message)

    @property
    def _best_record(self) -> Record:
        """The first of the scheduled records whose criterion is smallest, if any is finite."""
        known = [record for record in self.history if is_scheduled(record["step"])]
        finite = [record for record in known if math.isfinite(self._value(record))]
        return min(finite, key=self._value, default=known[-1])

    def _value(self, record: Record) -> float:
        """The criterion, which records of earlier versions may not have."""
        return record.get(self.criterion, math.nan)

    @property
    def _last_is_better(self) -> bool:
        """Whether the last record beats the best; if that is infinite, any record does."""
        return self._value(self.history[-1]) < self.best or self.best == math.inf
