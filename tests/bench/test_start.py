"""What comes before the first step is timed in processes of its own."""

import json

import pytest

from natpinn.bench.first_steps import seconds_until_first_step
from natpinn.bench.start import time_start


def test_the_first_step_ends_the_clock():
    class Progress:
        def __init__(self, step):
            self.step = step

    def solve(steps, progress, callbacks):
        (has_begun,) = callbacks
        assert steps > 0
        assert [has_begun(Progress(i)) for i in (0, 0, 4, 5)] == [False, False, True, True]

    assert seconds_until_first_step(solve, begun=0.0) > 1e9  # seconds since 1970


@pytest.mark.slow
def test_bench_start_times_every_start(capsys):
    found = time_start(["poisson_2d"], repeats=1)
    assert found == json.loads(json.dumps(found))
    assert found["process"].keys() == {
        "import jax, equinox, optax",
        "import natpinn",
        "from natpinn import *",
        "natpinn --help",
    }
    assert found["solve"].keys() == found["first_step"].keys() == {"poisson_2d"}
    starts = [found["solve"]["poisson_2d"], found["first_step"]["poisson_2d"]]
    for start in starts:
        assert min(start["cold"], start["warm"]) > 0
    assert found["again"].keys() == {"first", "other_constant", "new_function"}
