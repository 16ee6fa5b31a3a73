"""Going on with a run from what it has left in its folder."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, NatpinnWarning
from ..models.theta import as_model
from ..optimizers.base import Optimizer
from ..parallel import processes as cluster
from ..parallel.devices import make_mesh
from ..parallel.plan import Plan
from ..problems.problem import Problem
from ..training.evaluation import is_scheduled
from ..training.limits import Limits
from ..training.progress import Callback
from ..training.snapshot import begin
from . import checkpoint
from .checkpoint import named_arrays
from .folder import RunFolder
from .names import OPTIMIZERS
from .records import CHECKPOINT, SUMMARY, read_config, read_history, read_summary
from .resolve import check_format, resolve
from .run import Earlier, Parts, describe, model_key, run
from .settings import flatten
from .solution import Solution, rebuild_problem, section


def resume(
    path: Path | str,
    problem: Problem | None = None,
    model: Any = None,
    optimizer: Optimizer | None = None,
    *,
    steps: int | None = None,
    budget: float | None = None,
    stop_at: float | None = None,
    devices: int | str | None = None,
    memory_limit: str | int | None = None,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
) -> Solution:
    """Go on with a run from its last checkpoint, as if it had never stopped.

    Limits are those of the whole run, what is done included; without any the run's own hold. Code
    of your own (a problem, a model, an optimizer that was built in Python) is not in the folder and
    has to be passed again. Devices and memory limit are as before unless others are given.
    """
    folder = RunFolder(Path(path), is_new=False) if cluster.is_first() else None
    try:
        parts = _rebuilt(Path(path), problem, model, optimizer, {
            "train.steps": steps,
            "train.budget": budget,
            "train.stop_at": stop_at,
            "compute.devices": devices,
            "compute.memory_limit": None if memory_limit is None else str(memory_limit),
        })  # fmt: skip
        keeps_plan = devices is None and memory_limit is None
        earlier = _earlier(parts, Path(path), keeps_plan, folder)
        return run(parts, path, progress, callbacks, earlier)
    finally:
        if folder is not None:
            folder.close()


def _rebuilt(
    folder: Path, problem: Problem | None, model: Any, optimizer: Any, limits: Mapping[str, Any]
) -> Parts:
    """What a run is made of, from its folder and what the folder cannot hold."""
    recorded = read_config(folder)
    check_format(recorded)
    if (folder / SUMMARY).exists():
        summary = read_summary(folder)
        if summary.get("status") == "diverged":
            raise InputError(f"the run in {folder} diverged: {summary.get('message')}")
    if problem is None:
        problem = rebuild_problem(recorded)
    settings = _known_settings(folder, recorded, problem, model, optimizer)
    assert problem is not None
    given = {key: value for key, value in limits.items() if value is not None}
    if given.keys() & {"train.steps", "train.budget"}:  # new limits replace all the old ones
        old = dict.fromkeys(("train.steps", "train.budget", "train.stop_at"), "none")
        given = old | given
    config = resolve(settings | given, problem)
    described = {**config.as_dict(), "model": recorded["model"]}
    if optimizer is not None:
        described["optimizer"] = describe(optimizer)
        if described["optimizer"] != recorded["optimizer"]:
            message = "the run goes on with another optimizer than before"
            warnings.warn(message, NatpinnWarning, stacklevel=3)
    problem = config.apply_sizes(problem)
    model = config.build_model(problem, model_key(config.seed)) if model is None else model
    optimizer = config.build_optimizer() if optimizer is None else optimizer
    return Parts.make(problem, as_model(model), optimizer, config, described)


def _earlier(parts: Parts, path: Path, keeps_plan: bool, folder: RunFolder | None) -> Earlier:
    """What a run has left in its folder: perhaps no checkpoint, if it was killed early."""
    is_whole = (path / SUMMARY).exists()
    nothing = begin(parts.optimizer, parts.theta, model_key(0))
    like = {"snapshot": nothing, "plan": Plan().packed(), "constants": parts.constants}
    stored = checkpoint.latest(path / CHECKPOINT, like)
    if stored is None:
        if is_whole:
            raise InputError(f"the run in {path} has no checkpoint to go on from")
        message = f"the run in {path} has no checkpoint yet: it begins again"
        warnings.warn(message, NatpinnWarning, stacklevel=3)
        return Earlier(folder, None, [], None)
    _check_constants(stored["constants"], parts.constants, path)
    snapshot = stored["snapshot"]
    step, seconds = int(snapshot.state.step), float(snapshot.seconds)
    limits = parts.config.train
    if is_whole and Limits(limits.steps, limits.budget).is_over(step, seconds):
        raise InputError(
            f"the run in {path} has taken {step:,} steps in {seconds:.1f} s, which is all that its "
            f"limits allow: give a larger --budget or --steps, of the whole run"
        )
    history = [
        record
        for record in read_history(path)
        if record["step"] <= step and is_scheduled(int(record["step"]))
    ]
    mesh = make_mesh(parts.config.compute.devices)
    plan = Plan.unpacked(stored["plan"], mesh) if keeps_plan else None
    return Earlier(folder, snapshot, history, plan)


def _check_constants(stored: Any, given: Any, path: Path) -> None:
    """What of the model is not trained is what it was when the run began."""
    old, new = named_arrays(stored), named_arrays(given)
    for name, value in old.items():
        if not np.array_equal(value, new[name], equal_nan=value.dtype.kind == "f"):
            raise InputError(
                f"the run in {path} had another model: {name!r}, which is not trained, has other "
                f"values; pass the model and the problem that the run had"
            )


def _known_settings(
    folder: Path, described: Mapping[str, Any], problem: Any, model: Any, optimizer: Any
) -> dict[str, Any]:
    """The settings of a run, less those that stand for objects that were passed."""
    kept = flatten(described)
    for kind, given in (("model", model), ("optimizer", optimizer)):
        name = section(described, kind).get("name")
        is_known = name == "mlp" if kind == "model" else name in OPTIMIZERS
        if given is None and not is_known:
            raise InputError(
                f"the {kind} of the run in {folder} ({name}) is code of your own, which a run "
                f"folder does not run: pass it again{_how(kind, name)}"
            )
        if given is not None:
            kept = {key: v for key, v in kept.items() if not key.startswith(f"{kind}.")}
    if problem is None:
        name = section(described, "problem").get("name")
        raise InputError(
            f"the problem of the run in {folder} ({name}) is code of your own, which a run folder "
            f"does not run: pass it again{_how('problem', name)}"
        )
    return kept


def _how(kind: str, name: Any) -> str:
    return f" with --{kind} {name}" if ":" in str(name) else f" as {kind}="
