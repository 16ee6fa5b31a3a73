"""Whatever is typed or written to a config file runs, or ends with one line and exit code 2."""

import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from natpinn.cli import main
from natpinn.problems.catalogue import CATALOGUE
from natpinn.runs.names import OPTIMIZERS

EXAMPLES = int(os.environ.get("NATPINN_FUZZ", "120"))  # `make fuzz` wants a thousand
RUNS = int(os.environ.get("NATPINN_FUZZ_RUNS", "4"))  # and fifty
QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]

SETTINGS = [
    "format",
    "seed",
    "problem.name",
    "problem.dimension",
    "points.interior",
    "points.boundary",
    "model.name",
    "model.widths",
    "model.activation",
    "model.scaled",
    "sampling.points",
    "sampling.held",
    "evaluation.points",
    "train.steps",
    "train.budget",
    "train.stop_at",
    "compute.devices",
    "compute.memory_limit",
    "checkpoint.every_seconds",
    "optimizer.name",
    "optimizer.damping",
    "optimizer.momentum",
    "optimizer.learning_rate",
    "optimizer.norm_cap",
    "optimizer.line_search",
    "optimizer.average",
    "points",
    "optimizer",
    "x",
    "x.y",
]
COSINE = {"schedule": "cosine_decay_schedule", "init_value": 0.1, "decay_steps": 5}
NAMES = st.sampled_from([*CATALOGUE, *OPTIMIZERS, "poison", "", "os:system", "a:b", ":", "none"])
NUMBERS = st.one_of(
    st.integers(-3, 40), st.floats(), st.sampled_from([0, -0.0, 2**63, 10**30, 1e-300, 1e300])
)
VALUES = st.one_of(
    NUMBERS,
    NAMES,
    st.booleans(),
    st.text(max_size=6),
    st.lists(NUMBERS, max_size=3),
    st.sampled_from(["grid", "sobol", "tanh", "1e-3", "[3]", "{", "all", "8GB", "0GB"]),
    st.builds(dict, st.just(COSINE)),
    st.dictionaries(st.sampled_from(["schedule", "init_value", "x"]), NUMBERS, max_size=2),
)
KEYS = st.sampled_from(SETTINGS)
FLAGS = {
    "--optimizer": NAMES,
    "--steps": NUMBERS,
    "--budget": NUMBERS,
    "--stop-at": NUMBERS,
    "--seed": NUMBERS,
    "--devices": VALUES,
    "--memory-limit": VALUES,
    "--nonsense": NAMES,
}


def command(arguments):
    """(exit code, stdout, stderr) of a command line; anything that escapes is a failure."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        mock.patch.object(sys, "argv", ["natpinn", *arguments]),
        mock.patch.dict(os.environ, {"NATPINN_DEBUG": "1"}),  # no catch-all
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    return code, out.getvalue(), err.getvalue()


def written(value):
    return value if isinstance(value, str) else tomli_w.dumps({"v": value})[4:].strip()


@st.composite
def command_lines(draw):
    """Flags and settings that are often right and often wrong."""
    arguments = [draw(st.sampled_from(["poisson_2d", "poisson_2d", draw(NAMES)]))]
    for name in draw(st.lists(st.sampled_from(sorted(FLAGS)), max_size=3)):
        arguments += [name, str(draw(FLAGS[name]))]
    for key in draw(st.lists(KEYS, max_size=3)):
        arguments += ["--set", f"{key}={written(draw(VALUES))}"]
    return [a for a in arguments if "\0" not in a]


@st.composite
def config_files(draw):
    """A TOML file: nested tables of known keys and any values, or no TOML at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=40))
    tables: dict[str, Any] = {"problem": {"name": "poisson_2d"}}
    for key in draw(st.lists(KEYS, max_size=5)):
        *path, last = key.split(".")
        table = tables
        for part in path:
            inner = table.get(part)
            table[part] = inner if isinstance(inner, dict) else {}
            table = table[part]
        table[last] = draw(VALUES)
    return tomli_w.dumps(tables).encode("utf-8", "surrogateescape")


def check(code, out, err):
    assert code in (0, 2), (code, err)
    if code == 2:
        assert out == ""
        assert err.startswith("natpinn: "), err
        assert err.count("\n") == 1, err
    assert "Traceback" not in err


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=QUIET)
@given(arguments=command_lines(), config=st.none() | config_files())
def test_settings_are_accepted_or_explained(arguments, config):
    with tempfile.TemporaryDirectory() as folder:
        if config is not None:
            path = Path(folder) / "config.toml"
            path.write_bytes(config)
            arguments = [*arguments, "--config", str(path)]
        check(*command(["solve", *arguments, "--out", f"{folder}/run", "--dry-run"]))
        assert not (Path(folder) / "run").exists()


SMALL = {
    "points.interior": st.integers(1, 30),
    "points.boundary": st.integers(1, 9),
    "model.widths": st.lists(st.integers(1, 6), max_size=2),
    "model.activation": st.sampled_from(["tanh", "sin", "gelu"]),
    "model.scaled": st.booleans(),
    "sampling.points": st.sampled_from(["uniform", "sobol"]),
    "sampling.held": st.booleans(),
    "evaluation.points": st.integers(1, 50),
    "checkpoint.every_seconds": st.sampled_from([1e-3, 60.0, "none"]),
    "optimizer.damping": st.floats(1e-300, 1e6),
    "optimizer.learning_rate": st.floats(1e-12, 1e12),
    "seed": st.integers(0, 2**63 - 1),
}


@pytest.mark.slow
@settings(max_examples=RUNS, deadline=None, suppress_health_check=QUIET)
@given(
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    chosen=st.lists(st.sampled_from(sorted(SMALL)), max_size=4, unique=True),
    data=st.data(),
)
def test_what_is_accepted_runs(optimizer, chosen, data):
    arguments = ["poisson_2d", "--optimizer", optimizer, "--steps", "4"]
    small = {"points.interior": 12, "points.boundary": 5, "model.widths": [3]}
    small |= {"evaluation.points": 20} | {key: data.draw(SMALL[key], label=key) for key in chosen}
    for key, value in small.items():
        arguments += ["--set", f"{key}={written(value)}"]
    with tempfile.TemporaryDirectory() as folder:
        check(*command(["solve", *arguments, "--out", f"{folder}/run"]))
