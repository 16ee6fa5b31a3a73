"""One run, from its parts to a solution: what `natpinn solve` and `natpinn resume` do."""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import equinox as eqx
import jax

from ..errors import InputError
from ..memory import show_bytes
from ..parallel import processes as cluster
from ..parallel.plan import Plan
from ..planning.explain import strategy
from ..planning.forecast import expected_step_seconds
from ..planning.planned import Planned, keep_plan, plan_step, smaller_limit
from ..planning.proposal import advise
from ..precision import computing
from ..training.evaluation import Evaluation
from ..training.loop import check_callbacks, train
from ..training.progress import Callback, Progress
from ..training.record import Record
from ..training.result import TrainResult
from ..training.signals import Interrupts, say
from ..training.snapshot import Snapshot
from .checkpoint import Checkpoint
from .display import Display
from .folder import RunFolder, check_free
from .held_out import warn_of_gap
from .parts import Parts, run_keys
from .slowness import slowness
from .solution import Solution
from .summary import summarize
from .trackers import Trackers


@dataclass(frozen=True)
class Earlier:
    """What an earlier process has left of a run that is resumed."""

    folder: RunFolder | None  # already locked, by the process that writes
    snapshot: Snapshot | None  # None: it was killed before its first checkpoint
    history: list[Record]
    plan: Plan | None

    @property
    def step(self) -> int:
        return 0 if self.snapshot is None else int(self.snapshot.state.step)


NOTHING = Earlier(None, None, [], None)  # of a new run


def run(
    parts: Parts,
    out: Path | str | None,
    progress: bool,
    callbacks: Sequence[Callback] = (),
    earlier: Earlier = NOTHING,
) -> Solution:
    """Train as configured, record it in a folder where one is given, and sum it up."""
    check_callbacks(callbacks)
    with computing(parts.config.compute.precision):
        return _run(parts, out, progress, callbacks, earlier)


def _run(
    parts: Parts,
    out: Path | str | None,
    progress: bool,
    callbacks: Sequence[Callback],
    earlier: Earlier,
) -> Solution:
    config, is_first = parts.config, cluster.is_first()
    path = None if out is None else Path(out)
    if path is not None and is_first and earlier is NOTHING:
        check_free(path)
    display = Display() if progress and is_first else None
    with display or contextlib.nullcontext(), Interrupts():  # signals wait for written results
        planned = plan(parts) if earlier.plan is None else _keep(parts, earlier.plan)
        evaluation = _evaluation(parts, planned.plan)
        advice = advise(parts.problem, planned.size)
        if advice and display and earlier is NOTHING:
            say(advice)
        folder = None
        if path is not None and is_first:
            folder = earlier.folder or RunFolder(path)
            folder.begin(config.as_dict(), earlier.history)
        try:
            others = config.track.trackers if is_first else ()
            trackers = Trackers(others, path, config.as_dict(), earlier.step)
            own: list[Callback] = [display] if display else []
            own += [_recorder(folder), _saver(folder, planned.plan, parts)] if folder else []
            own += [_stopper(config.train.stop_at)] if config.train.stop_at else []
            own += [slowness(expected_step_seconds(planned))] if display else []
            result = _train(parts, planned, evaluation, [*own, trackers, *callbacks], earlier)
            warn_of_gap(result.history[-1])
            solution = _solution(parts, planned, result)
            if folder is not None:
                solution.folder = folder.finish(solution.results)
            trackers.finish(solution.summary)
            return solution
        except jax.errors.JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise _out_of_memory(planned) from error
        finally:
            if folder is not None:
                folder.close()


def _evaluation(parts: Parts, plan: Plan) -> Evaluation:
    _, _, key = run_keys(parts.config.seed)
    return parts.problem.evaluation(parts.model, key).planned(plan)


def _train(
    parts: Parts,
    planned: Planned,
    evaluation: Evaluation,
    callbacks: Sequence[Callback],
    earlier: Earlier,
) -> TrainResult:
    """Training as configured, and as planned."""
    config = parts.config
    _, train_key, _ = run_keys(config.seed)
    return train(
        parts.objective.planned(planned.plan),
        parts.theta,
        parts.optimizer,
        evaluation,
        key=train_key,
        steps=config.train.steps,
        budget=config.train.budget,
        callbacks=callbacks,
        resume=earlier.snapshot,
        history=earlier.history,
        steps_per_batch=config.sampling.steps_per_batch,
        tracking=config.track.tracking,
    )


def plan(parts: Parts, always_compile: bool = False) -> Planned:
    """How a run is computed under the configured limits."""
    compute = parts.config.compute
    with computing(compute.precision):
        return plan_step(
            parts.objective,
            parts.theta,
            parts.optimizer,
            compute.bytes,
            compute.devices,
            always_compile,
        )


def _keep(parts: Parts, plan: Plan) -> Planned:
    """The plan that a run had before: another one would round differently."""
    return keep_plan(parts.objective, parts.theta, parts.optimizer, plan)


def _recorder(folder: RunFolder) -> Callback:
    """Writes a line for each evaluation."""

    def record(progress: Progress) -> None:
        if progress.evaluated:
            folder.append(progress.metrics)

    return record


def _saver(folder: RunFolder, plan: Plan, parts: Parts) -> Callback:
    """Writes checkpoints, in the background and from time to time."""
    every = parts.config.checkpoint.every_seconds
    last = time.monotonic()

    def save(progress: Progress) -> None:
        nonlocal last
        if every is None or time.monotonic() - last < every:
            return
        last = time.monotonic()
        folder.checkpoint(progress.step, Checkpoint.of(progress.snapshot, plan, parts.constants))

    return save


def _stopper(stop_at: float) -> Callback:
    """Ends a run at an error."""
    return lambda progress: progress.evaluated and progress.error <= stop_at


def _solution(parts: Parts, planned: Planned, result: TrainResult) -> Solution:
    return Solution(
        eqx.combine(result.best_theta, parts.objective.frozen),
        parts.problem,
        result.history,
        summarize(parts, planned, result),
        parts.config.as_dict(),
        Checkpoint.of(result.snapshot, planned.plan, parts.constants),
    )


def is_out_of_memory(error: Exception) -> bool:
    """Whether JAX says that a device has no memory left."""
    return "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error)


def _out_of_memory(planned: Planned) -> InputError:
    """The plan that did not fit, and a limit under which another one is made."""
    limit = smaller_limit(planned)
    remedy = "use fewer points" if limit is None else f"try --memory-limit {limit // 10**6}MB"
    return InputError(
        f"out of memory: a step takes {show_bytes(planned.compiled or planned.predicted)} as "
        f"planned ({strategy(planned)}), and {show_bytes(planned.available)} were free; {remedy}"
    )
