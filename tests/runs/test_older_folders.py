"""Run folders that earlier versions wrote are loaded, and go on."""

import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest

import natpinn
from natpinn.runs.resolve import FORMAT

FOLDERS = sorted((Path(__file__).parents[1] / "data" / "runs").iterdir())


@pytest.mark.parametrize("old", FOLDERS, ids=lambda path: path.name)
def test_a_folder_of_an_earlier_version_is_loaded_and_goes_on(old, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(old, folder)
    summary = json.loads((folder / "summary.json").read_text())
    loaded = natpinn.load(folder)
    relative = natpinn.problems.get("poisson_2d").solution
    assert relative is not None
    points = np.random.default_rng(0).uniform(size=(2000, 2))
    exact = np.array([relative(x) for x in points]).ravel()
    error = np.linalg.norm(np.ravel(loaded(points)) - exact) / np.linalg.norm(exact)
    best = summary.get("best_relative_l2", summary.get("best_relative_l2_error"))
    assert error == pytest.approx(best, rel=0.2)  # measured on other points

    steps = summary["steps"] + 5
    longer = natpinn.resume(folder, steps=steps, progress=False)
    assert longer.summary["steps"] == steps
    before = [record for record in loaded.history if record["step"] <= summary["steps"]]
    for old_record, new_record in zip(before, longer.history, strict=False):
        assert old_record == new_record
    assert tomllib.loads((folder / "config.toml").read_text())["format"] == FORMAT
