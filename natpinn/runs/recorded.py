"""What the configuration of a run folder says, and what can be built again from it.

A configuration may be anyone's. Code of a user's own is never run because a folder names it: what
stands for such code has to be passed again.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from ..errors import InputError
from ..optimizers.base import Optimizer
from ..precision import DOUBLE, PRECISIONS
from ..problems.catalogue import CATALOGUE
from ..problems.problem import Problem
from .config import MLP_NAME, Config
from .names import OPTIMIZERS, chosen
from .own_code import lookup_problem
from .records import read_config
from .resolve import check_format, resolve
from .settings import flatten


@dataclass(frozen=True)
class Recorded:
    """The configuration of one run folder."""

    folder: Path
    tables: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Recorded":
        tables = read_config(folder)
        check_format(tables)
        return cls(folder, tables)

    def table(self, name: str) -> Mapping[str, Any]:
        found = self.tables.get(name)
        if not isinstance(found, Mapping):
            raise InputError(f"the configuration of this run has no table [{name}]: it is damaged")
        return found

    def name(self, kind: str) -> object:
        """The name of the problem, the model or the optimizer."""
        return self.table(kind).get("name")

    @property
    def precision(self) -> str:
        """The type of the numbers of the run; float64 before there was a choice."""
        table = self.tables.get("compute")
        found = table.get("precision", DOUBLE) if isinstance(table, Mapping) else DOUBLE
        chosen("precision", found, PRECISIONS)
        return found

    def problem(self) -> Problem | None:
        """The problem, if it is one of the catalogue."""
        table = self.table("problem")
        name = str(table.get("name"))
        if name not in CATALOGUE or table.get("own"):
            return None
        return lookup_problem(name, table.get("dimension"))

    def model(self, problem: Problem | None) -> Any:
        """A model like the one that was trained, if it was natpinn's own."""
        if problem is None:
            raise InputError(
                f"the problem of this run ({self.name('problem')}) is code of your own, which load "
                f"does not run: pass it as problem=, and a model of your own as like="
            )
        if self.name("model") != MLP_NAME:
            raise InputError(
                f"pass a model like the one that was trained ({self.name('model')}) as like="
            )
        table = flatten({"model": self.table("model")})
        config = resolve({"problem.name": problem.name, **table}, problem)
        return config.build_model(problem, jax.random.key(0))

    def config(
        self,
        settings: Mapping[str, Any],
        problem: Problem | None,
        model: Any = None,
        optimizer: Optimizer | None = None,
    ) -> Config:
        """The run's configuration with other settings, and without those of passed objects."""
        kept = flatten(self.tables)
        name = self.name("model")
        if model is not None:
            kept = {key: v for key, v in kept.items() if not key.startswith("model.")}
            kept |= {"model.name": name} if ":" in str(name) else {}
        elif name != MLP_NAME and "model.name" not in settings:
            raise self._own_code("model")
        if optimizer is not None:
            kept = {key: v for key, v in kept.items() if not key.startswith("optimizer.")}
        elif self.name("optimizer") not in OPTIMIZERS:
            raise self._own_code("optimizer")
        if problem is None:
            raise self._own_code("problem")
        if settings.keys() & {"train.steps", "train.budget"}:  # new limits replace all the old ones
            kept |= dict.fromkeys(("train.steps", "train.budget", "train.stop_at"), "none")
        return resolve({**kept, **settings}, problem)

    def _own_code(self, kind: str) -> InputError:
        name = self.name(kind)
        how = f" with --{kind} {shlex.quote(str(name))}" if ":" in str(name) else f" as {kind}="
        return InputError(
            f"the {kind} of the run in {self.folder} ({name}) is code of your own, which a run "
            f"folder does not run: pass it again{how}"
        )
