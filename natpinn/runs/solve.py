"""natpinn.solve: a problem in, a solution out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..optimizers.base import Optimizer
from ..problems.problem import Problem
from ..training.progress import Callback
from .parts import assemble
from .resolve import resolve
from .run import run
from .solution import Solution


def solve(
    problem: Problem | str,
    model: Any = None,
    optimizer: Optimizer | str | None = None,
    *,
    steps: int | None = None,
    budget: float | None = None,
    seed: int = 0,
    stop_at: float | None = None,
    points: Mapping[str, int | None] | None = None,
    steps_per_batch: int | None = None,
    devices: int | str | None = None,
    memory_limit: str | int | None = None,
    precision: str | None = None,
    out: Path | str | None = None,
    checkpoint_seconds: float | None = None,
    track: Sequence[str] = (),
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
) -> Solution:
    """Solve a problem: train a network until `steps`, `budget` seconds or the error `stop_at`.

    **Arguments:**

    - `problem`: a `Problem`, or the name of one of the catalogue.
    - `model`: anything that maps a point to numbers: an Equinox module, or a pair of parameters and
      a function. Default: the problem's own network.
    - `optimizer`: as `natpinn.spring()`, or a name, which takes the best settings known for the
      problem. Default: `auto`, which needs no settings.
    - `steps`: how many steps at most. Default: no limit.
    - `budget`: seconds of training at most, without compilation and evaluation; the first limit
      that is reached ends the run. Default: no limit, or 60 where no steps are given either.
    - `seed`: of the weights, the points and the evaluation. Default: 0.
    - `stop_at`: an L2 error, or a validation loss where no solution is known, that ends the run.
      Default: none.
    - `points`: how many points a step has in each condition, as `{"interior": 500}`; None for what
      suits this machine. Default: as the conditions say.
    - `steps_per_batch`: steps before points are drawn anew. Default: 1.
    - `devices`: how many devices to use, or `"all"`. Default: 1.
    - `memory_limit`: of each device, as `"8GB"` or in bytes; steps are planned to stay below it.
      Default: what is free there.
    - `precision`: `"float64"`, or `"float32"` for devices that are slow with 64 bits; errors then
      stop at 1e-6 to 1e-4. Default: `"float64"`.
    - `out`: a new folder, which records the run. Default: none.
    - `checkpoint_seconds`: the time between two checkpoints in that folder, from which
      `natpinn.resume` goes on. Default: 60.
    - `track`: what of the kernel's spectrum is recorded, as `["effective_dimension"]`. Default:
      nothing.
    - `progress`: whether progress is shown. Default: True.
    - `callbacks`: functions of a `Progress`, as in `natpinn.train`. Default: none.

    **Returns:** the `Solution` with the best parameters of the run.

    **Raises:** `InputError` for anything that cannot work, before training starts, and where memory
    does not suffice.

        import natpinn

        solution = natpinn.solve("poisson_2d", optimizer="spring", steps=3, progress=False)
        print(solution.summary["relative_l2"])
    """
    if not isinstance(problem, Problem | str):
        raise InputError(f"a problem is a Problem or the name of one, got {problem!r}")
    if optimizer is not None and not isinstance(optimizer, Optimizer | str):
        raise InputError(
            f"an optimizer is one of natpinn's, as in spring(damping=1e-6), or its name, got "
            f"{optimizer!r}; an optax method is FirstOrder(optax.lion, {{'learning_rate': 1e-3}})"
        )
    if not isinstance(points, Mapping | None):
        names = ", ".join(f"{key!r}: …" for key in getattr(problem, "conditions", ["interior"]))
        raise InputError(f"points are given by condition, as {{{names}}}, got {points!r}")
    if not isinstance(track, Sequence):
        raise InputError(f"track is a list, as ['effective_dimension'], got {track!r}")
    given = {
        "problem.name": problem if isinstance(problem, str) else problem.name,
        "optimizer.name": optimizer if isinstance(optimizer, str) else None,
        "train.steps": steps,
        "train.budget": budget,
        "train.stop_at": stop_at,
        "seed": seed,
        "sampling.steps_per_batch": steps_per_batch,
        "compute.devices": devices,
        "compute.memory_limit": None if memory_limit is None else str(memory_limit),
        "compute.precision": precision,
        "checkpoint.every_seconds": checkpoint_seconds,
        "track.quantities": list(track) or None,
        **{f"points.{key}": "none" if n is None else n for key, n in (points or {}).items()},
    }
    settings = {key: value for key, value in given.items() if value is not None}
    own_problem = problem if isinstance(problem, Problem) else None
    own_optimizer = optimizer if isinstance(optimizer, Optimizer) else None
    parts = assemble(resolve(settings, own_problem), own_problem, model, own_optimizer)
    return run(parts, out, progress, callbacks)
