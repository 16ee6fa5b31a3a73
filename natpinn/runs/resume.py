"""Going on with a run: find what there is of it, and run."""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import PyTree

from ..errors import InputError, NatpinnWarning
from ..optimizers.base import Optimizer
from ..parallel import processes as cluster
from ..parallel.devices import make_mesh
from ..parallel.plan import Plan
from ..precision import computing
from ..problems.problem import Problem
from ..training.evaluation import is_scheduled
from ..training.progress import Callback
from ..training.snapshot import begin
from . import checkpoint
from .checkpoint import Checkpoint, DamagedError, named_arrays
from .folder import RunFolder
from .own_code import lookup_problem
from .parts import Parts, assemble, model_key
from .recorded import Recorded
from .records import CHECKPOINT, SUMMARY, read_history, read_summary
from .run import Earlier, run
from .solution import Solution
from .trackers import ENVIRONMENT, unsaid


def resume(
    path: Path | str,
    problem: Problem | str | None = None,
    model: Any = None,
    optimizer: Optimizer | None = None,
    *,
    steps: int | None = None,
    budget: float | None = None,
    stop_at: float | None = None,
    devices: int | str | None = None,
    memory_limit: str | int | None = None,
    trackers: Sequence[str] = (),
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
) -> Solution:
    """Go on with a run from its last checkpoint, as if it had never stopped.

    Code of your own is not in the folder and has to be passed again. Limits are those of the whole
    run, what is done included.

    **Arguments:**

    - `path`: the run folder.
    - `problem`: the problem, or its name as `module:attribute`. Default: the one of the catalogue
      that the folder names.
    - `model`: the model, or its name as `module:attribute`. Default: natpinn's own network.
    - `optimizer`: the optimizer, if it was built in Python. Default: the one that the folder names.
    - `steps`, `budget`, `stop_at`: as in `natpinn.solve`; new ones replace all the old ones.
      Default: the run's own limits.
    - `devices`, `memory_limit`: as in `natpinn.solve`. Default: as before, since another plan
      rounds differently.
    - `trackers`: `"wandb"`, `"tensorboard"`, or both, beside those that the folder names. One that
      sends records to another host is not used because a folder names it: name it here. Default:
      none.
    - `progress`: whether progress is shown. Default: True.
    - `callbacks`: functions of a `Progress`, as in `natpinn.train`. Default: none.

    **Returns:** the `Solution` of the whole run.

    **Raises:** `InputError` where the folder is no run, is in use or damaged, where what has to be
    passed is missing or another one, and where the limits are reached already.

        import natpinn

        natpinn.solve("poisson_2d", steps=3, out="run", progress=False)
        natpinn.resume("run", steps=5, progress=False)
    """
    given = {
        "train.steps": steps,
        "train.budget": budget,
        "train.stop_at": stop_at,
        "compute.devices": devices,
        "compute.memory_limit": None if memory_limit is None else str(memory_limit),
        "model.name": model if isinstance(model, str) else None,
    }
    settings = {key: value for key, value in given.items() if value is not None}
    objects = (problem, None if isinstance(model, str) else model, optimizer)
    folder = RunFolder(Path(path), is_new=False) if cluster.is_first() else None
    try:
        parts = _parts(Path(path), settings, trackers, *objects)
        keeps_plan = devices is None and memory_limit is None
        with computing(parts.config.compute.precision):
            earlier = _find(parts, Path(path), keeps_plan, folder)
        return run(parts, path, progress, callbacks, earlier)
    finally:
        if folder is not None:
            folder.close()


def _parts(
    path: Path,
    settings: dict[str, Any],
    trackers: Sequence[str],
    problem: Problem | str | None,
    model: Any,
    optimizer: Optimizer | None,
) -> Parts:
    """What the run is made of, from its folder and what the folder cannot hold."""
    recorded = Recorded.read(path)
    if (path / SUMMARY).exists():
        summary = read_summary(path)
        if summary.get("status") == "diverged":
            raise InputError(f"the run in {path} diverged: {summary.get('message')}")
    if isinstance(problem, str):
        problem = lookup_problem(problem)
    problem = recorded.problem() if problem is None else problem
    settings = settings | {"track.trackers": _trackers(recorded, trackers)}
    config = recorded.config(settings, problem, model, optimizer)
    parts = assemble(config, problem, model, optimizer)
    if optimizer is not None and parts.config.as_dict()["optimizer"] != recorded.table("optimizer"):
        message = "the run goes on with another optimizer than before"
        warnings.warn(message, NatpinnWarning, stacklevel=3)
    return parts


def _trackers(recorded: Recorded, said: Sequence[str]) -> list[str]:
    """The trackers of the folder and of the user, without those elsewhere that only it names."""
    listed = recorded.table("track").get("trackers")
    listed = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    elsewhere = unsaid(listed, said)
    if elsewhere:
        message = (
            f"the run in {recorded.folder} sent its records to {', '.join(elsewhere)}, which "
            f"natpinn does not contact because a folder names it: say --tracker {elsewhere[0]}, or "
            f"set {ENVIRONMENT}={elsewhere[0]}"
        )
        warnings.warn(message, NatpinnWarning, stacklevel=4)
    return [n for n in dict.fromkeys([*listed, *said]) if n not in elsewhere]


def _find(parts: Parts, path: Path, keeps_plan: bool, folder: RunFolder | None) -> Earlier:
    """What a run has left in its folder: perhaps no checkpoint, if it was killed early."""
    is_whole = (path / SUMMARY).exists()
    nothing = begin(parts.optimizer, parts.theta, model_key(0))
    like = Checkpoint.of(nothing, Plan(), parts.constants)
    stored = _latest(path, like, is_whole)
    if stored is None:
        return Earlier(folder, None, [], None)
    _check_constants(stored.constants, parts.constants, path)
    step, seconds = int(stored.snapshot.state.step), float(stored.snapshot.seconds)
    is_over = parts.config.train.limits.is_over(step, seconds)
    if is_whole and is_over:
        raise InputError(
            f"the run in {path} has taken {step:,} steps in {seconds:.1f} s, which is all that its "
            f"limits allow: give a larger --budget or --steps, of the whole run"
        )
    history = [
        record
        for record in read_history(path)
        if (is_scheduled(int(record["step"])) and record["step"] <= step)
        or (is_over and record["step"] == step)
    ]
    snapshot = stored.snapshot
    if not any("validation_loss" in record for record in history):  # of before format 7
        snapshot = snapshot._replace(best=np.asarray(math.inf))  # it was an error, not a loss
    mesh = make_mesh(parts.config.compute.devices)
    plan = Plan.unpacked(stored.plan, mesh) if keeps_plan else None
    return Earlier(folder, snapshot, history, plan)


def _latest(path: Path, like: Checkpoint, is_whole: bool) -> Checkpoint | None:
    """The newest checkpoint; None where a run was killed, or lost its power, before the first."""
    try:
        stored = checkpoint.latest(path / CHECKPOINT, like)
        reason = "has no checkpoint yet"
    except DamagedError as error:
        found = checkpoint.steps(path / CHECKPOINT)
        if is_whole or len(found) > 1:
            raise
        stored, reason = None, f"has no whole checkpoint ({error})"
        if cluster.is_first():
            checkpoint.put_away(path / CHECKPOINT / str(found[0]))
    if stored is None and is_whole:
        raise InputError(f"the run in {path} has no checkpoint to go on from")
    if stored is None:
        message = f"the run in {path} {reason}: it begins again"
        warnings.warn(message, NatpinnWarning, stacklevel=4)
    return stored


def _check_constants(stored: PyTree, given: PyTree, path: Path) -> None:
    """Check that the constants of the model are those with which the run began."""
    old, new = named_arrays(stored), named_arrays(given)
    for name, value in old.items():
        if not np.array_equal(value, new[name], equal_nan=value.dtype.kind == "f"):
            raise InputError(
                f"the run in {path} had another model: {name!r}, which is not trained, has other "
                f"values; pass the model and the problem that the run had"
            )
