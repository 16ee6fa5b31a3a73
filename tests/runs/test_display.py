"""What a run shows while it trains."""

import io
import re
from typing import cast

import pytest

from natpinn.runs.display import Display, describe, show_duration
from natpinn.training.progress import Progress
from natpinn.training.record import Record
from natpinn.training.snapshot import Snapshot


def progress(step, seconds, steps=None, budget=None):
    metrics, nothing = Record(loss=1.5e-3, relative_l2=2e-4), cast("Snapshot", None)
    return Progress(step, seconds, metrics, True, "l2", steps, budget, nothing)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.2, "0 s"), (119, "119 s"), (130, "2 min"), (7000, "117 min"), (12000, "3 h 20 min")],
)
def test_durations_read_as_people_say_them(seconds, shown):
    assert show_duration(seconds) == shown


def test_a_line_says_where_a_run_stands():
    begun = describe(progress(0, 0.0, steps=10))
    assert begun == "step 0  loss 1.50e-03  relative L2 error 2.00e-04"
    fast, slow = describe(progress(1000, 10, budget=40)), describe(progress(4, 10, steps=400))
    assert fast.endswith("10 ms/step  30 s left")
    assert slow.endswith("2.5 s/step  16 min left")


def test_lines_go_to_what_is_no_terminal():
    stream = io.StringIO()
    with Display(stream) as display:
        display(progress(1, 0.1, steps=10))
        display(progress(2, 0.2, steps=10))  # too soon
        display(progress(10, 1.0, steps=10))
    lines = stream.getvalue().splitlines()
    begun, ready, *steps = lines
    assert begun == "tracing and compiling …"
    assert re.fullmatch(r"ready to train after 0\.\d s \(0\.0 s tracing, 0\.0 s compiling\)", ready)
    assert [line.split("  ")[0] for line in steps] == ["step 1", "step 10"]
