"""A message where the residual is small at the points of training alone."""

import math
import warnings

from ..errors import NatpinnWarning
from ..training.record import Record

FAR = 10.0  # times the residual at the points of training, in the mean square


def warn_of_gap(record: Record) -> None:
    """Warn where a residual at points that no step has seen is far larger than at those of a step.

    That is so where points are held, or are fewer than the parameters can follow: the loss falls,
    and the solution is wrong between the points.
    """
    loss, held_out = (record.get(name, math.nan) for name in ("loss", "validation_loss"))
    if not (loss > 0 and math.isfinite(held_out) and held_out > FAR**2 * loss):
        return
    times = math.sqrt(held_out / loss)
    message = (
        f"the residual is {times:.0f} times as large at points that no step has seen: the network "
        f"fits its points, and not what is between them; take more points, new ones at every step "
        f"(sampling.held=false, sampling.steps_per_batch=1), or such as follow the residual to a "
        f"front (sampling.candidates=8)"
    )
    warnings.warn(message, NatpinnWarning, stacklevel=2)
