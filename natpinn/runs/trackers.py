"""Other places for the records of a run: Weights & Biases, TensorBoard.

They get what `metrics.jsonl` gets. One that fails is left out with a warning, and training goes on.
"""

import math
import os
import re
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from ..errors import InputError, NatpinnWarning, unknown
from ..files import FOLDER, check_kind, read_text, replace_text
from ..training.progress import Progress


class Tracker(Protocol):
    """Takes the records of one run."""

    def log(self, record: Mapping[str, float]) -> None: ...

    def finish(self, summary: Mapping[str, Any]) -> None: ...


class WandbTracker:
    """A run of Weights & Biases, named as its folder; WANDB_MODE=offline keeps it on this disk."""

    def __init__(self, folder: Path | None, config: Mapping[str, Any], step: int):
        import wandb

        place: dict[str, Any] = {} if folder is None else {"dir": str(folder), "name": folder.name}
        self._run = wandb.init(
            project="natpinn",
            config=dict(config),
            id=_identity(folder),
            resume="allow",
            settings=wandb.Settings(console="off", silent=True),
            **place,
        )

    def log(self, record: Mapping[str, float]) -> None:
        self._run.log(dict(record), step=int(record["step"]))

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._run.summary.update(dict(summary))
        self._run.finish()


class TensorboardTracker:
    """Event files in RUN/tensorboard: look at them with `tensorboard --logdir runs`."""

    def __init__(self, folder: Path | None, config: Mapping[str, Any], step: int):
        from tensorboardX import SummaryWriter

        if folder is None:
            raise InputError("TensorBoard's files go to a run folder: choose one with out=")
        check_kind(folder / "tensorboard", FOLDER)
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step or None)
        self._writer.add_text("config", f"```\n{config}\n```")

    def log(self, record: Mapping[str, float]) -> None:
        for name, value in record.items():
            if name != "step" and math.isfinite(value):
                self._writer.add_scalar(name, value, int(record["step"]))
        self._writer.flush()

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._writer.close()


IDENTITY = re.compile(r"[\w-]{1,64}", re.ASCII)
REMOTE = ("wandb",)  # trackers that send records to another host
ENVIRONMENT = "NATPINN_TRACKERS"  # the variable of a user's own that allows them
PACKAGES = {"wandb": "wandb", "tensorboard": "tensorboardX"}
TRACKERS: dict[str, Callable[..., Tracker]] = {
    "wandb": WandbTracker,
    "tensorboard": TensorboardTracker,
}


class Trackers:
    """The trackers of a run, as a callback of `train`."""

    def __init__(
        self, names: Sequence[str], folder: Path | None, config: Mapping[str, Any], step: int = 0
    ):
        self._open: dict[str, Tracker] = {}
        for name in check_trackers(names):
            try:
                self._open[name] = TRACKERS[name](folder, config, step)
            except InputError:
                raise
            except Exception as error:
                message = f"{name} gets no records of this run: {error}"
                warnings.warn(message, NatpinnWarning, stacklevel=3)

    def __call__(self, progress: Progress) -> None:
        if progress.evaluated:
            self._attempt(lambda tracker: tracker.log(progress.metrics))

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._attempt(lambda tracker: tracker.finish(summary))

    def _attempt(self, use: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._open.items()):
            try:
                use(tracker)
            except Exception as error:
                del self._open[name]
                message = f"{name} takes no more records of this run: {error}"
                warnings.warn(message, NatpinnWarning, stacklevel=3)


def unsaid(names: object, said: Sequence[str] = ()) -> list[str]:
    """The trackers on other hosts that a file names, and this user has not named as well."""
    allowed = {*said, *os.environ.get(ENVIRONMENT, "").replace(",", " ").split()}
    found = names if isinstance(names, list | tuple) else [names]
    return [name for name in found if name in REMOTE and name not in allowed]


def check_trackers(names: Sequence[str]) -> Sequence[str]:
    for name in names:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)
        if find_spec(PACKAGES[name]) is None:
            raise InputError(f"{name} is not installed: pip install {PACKAGES[name]}")
    return names


def _identity(folder: Path | None) -> str:
    """The id of a run at Weights & Biases, kept in its folder for when it is resumed."""
    if folder is None:
        return uuid.uuid4().hex
    check_kind(folder / "wandb", FOLDER)  # where its files go
    settings = folder / "wandb" / "settings"
    if os.path.lexists(settings):  # which could name another host
        raise InputError(
            f"{settings} is not of natpinn, and Weights & Biases would obey: remove it"
        )
    path = folder / "wandb.id"
    if not os.path.lexists(path):
        replace_text(path, uuid.uuid4().hex)
    found = read_text(path)
    if not IDENTITY.fullmatch(found):
        raise InputError(f"{path} has no id of a run: remove it")
    return found
