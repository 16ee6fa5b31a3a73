"""Trackers get the records that the run folder gets, and cannot stop a run."""

import json
import struct
import time
from typing import Any

import pytest

import natpinn
from natpinn import InputError, NatpinnWarning
from natpinn.runs import trackers
from natpinn.runs.parts import assemble
from natpinn.runs.records import read_history
from natpinn.runs.resolve import resolve
from natpinn.runs.run import run


def solve(tmp_path, name, steps=5):
    settings = {"problem.name": "poisson_2d", "train.steps": steps, "track.trackers": [name]}
    sizes = {"points.interior": 20, "points.boundary": 8, "evaluation.points": 100}
    resolved = resolve(settings | sizes | {"model.widths": [6]})
    return run(assemble(resolved), tmp_path / "run", progress=False)


def read_events(folder):
    """(name, step, value) of all scalars in the event files of a folder."""
    from tensorboardX.proto import event_pb2

    parse: Any = vars(event_pb2)["Event"].FromString
    found = []
    for path in sorted((folder / "tensorboard").iterdir()):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            event = parse(content[at + 12 : at + 12 + length])
            at += 16 + length
            found += [(v.tag, event.step, v.simple_value) for v in event.summary.value]
    return [record for record in found if not record[0].startswith("config")]


def test_tensorboard_gets_the_records(tmp_path):
    pytest.importorskip("tensorboardX")
    solution = solve(tmp_path, "tensorboard")
    found = {(tag, step): value for tag, step, value in read_events(tmp_path / "run")}
    for record in read_history(tmp_path / "run"):
        for name in ("loss", "l2", "seconds"):
            assert found[name, record["step"]] == pytest.approx(record[name], rel=1e-6)
    natpinn.resume(tmp_path / "run", steps=8, progress=False)
    assert max(step for _, step, _ in read_events(tmp_path / "run")) == 8
    assert solution.summary["status"] == "finished"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_wandb_gets_the_records_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    solve(tmp_path, "wandb")
    files = list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 1
    assert (tmp_path / "run" / "wandb.id").read_text() in files[0].name
    history = read_history(tmp_path / "run")
    wanted = [json.dumps(record["l2"]).encode() for record in history]
    end = time.monotonic() + 60  # another process writes, and may lag behind on a busy machine
    while not all(text in files[0].read_bytes() for text in wanted) and time.monotonic() < end:
        time.sleep(0.2)
    content = files[0].read_bytes()
    assert all(text in content for text in wanted)


def test_a_tracker_that_fails_is_left_out(tmp_path, monkeypatch):
    class Failing:
        def __init__(self, folder, config, step):
            self.calls = 0

        def log(self, record):
            raise ConnectionError("the network is gone")

        def finish(self, summary):
            raise AssertionError("it was left out")

    monkeypatch.setitem(trackers.TRACKERS, "wandb", Failing)
    with pytest.warns(NatpinnWarning, match="takes no more records of this run: the network"):
        solution = solve(tmp_path, "wandb")
    assert solution.summary["status"] == "finished"


def test_unknown_and_missing_trackers_are_explained(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="did you mean 'wandb'"):
        solve(tmp_path, "wand")

    def fail(*_):
        raise ConnectionError("no network")

    with monkeypatch.context() as patch:
        patch.setitem(trackers.TRACKERS, "wandb", fail)
        with pytest.warns(NatpinnWarning, match="gets no records of this run: no network"):
            solve(tmp_path, "wandb")
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install wandb"):
        solve(tmp_path, "wandb")
