"""The outcome of a run in one table: `summary.json`."""

from ..machine import machine
from ..models.theta import parameter_count
from ..planning.explain import strategy
from ..planning.planned import Planned
from ..training.record import Record
from ..training.result import TrainResult
from .parts import Parts

ERRORS = ("l2", "relative_l2", "validation_loss")  # of what is returned, at their best, at the end


def summarize(parts: Parts, planned: Planned, result: TrainResult) -> Record:
    """The summary of a run: what it was, how it went, and where."""
    return Record(
        problem=parts.problem.label,
        optimizer=parts.config.optimizer["name"],
        parameters=parameter_count(parts.model),
        points=dict(parts.config.points),
        devices=planned.plan.devices,
        precision=parts.config.compute.precision,
        strategy=strategy(planned),
        lapack_threads=planned.plan.lapack_threads,
        **_outcome(result),
        **machine(),
    )


def _outcome(result: TrainResult) -> dict[str, object]:
    """How training went."""
    last, steps = result.history[-1], int(result.state.step)
    returned = result.returned
    outcome: dict[str, object] = {
        "steps": steps,
        "returned_step": returned["step"],
        "training_loss": last.get("loss"),  # of the last batch
        "seconds": result.seconds,
        "compile_seconds": result.compile_seconds,
        "tracking_seconds": result.tracking_seconds,
        "steps_per_second": steps / result.seconds if result.seconds else 0.0,
        "rejected_steps": int(result.state.events.rejected),
        "recovered_steps": int(result.state.events.recovered),
        "status": result.status,
        "message": result.message,
    }
    for name in ERRORS:
        values = [record[name] for record in result.history if record.get(name) is not None]
        outcome[name] = returned.get(name)
        outcome[f"best_{name}"] = min((v for v in values if v == v), default=None)
        outcome[f"final_{name}"] = last.get(name)
    return outcome
