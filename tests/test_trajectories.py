"""Thirty steps of every method on six problems, compared with records of the version before.

Digits differ between CPUs and versions of JAX, and steps amplify what differs: an almost singular
system by 1e8, a number of conjugate gradients by a whole iteration. So the start and the first step
are compared closely, the next ones by their losses and errors, the last by the size of its loss.
`tests/trajectories.py` writes the records, and compares two versions on one machine to the last
digit.
"""

import json
import math
from pathlib import Path

import pytest
from trajectories import CLOSE, MORE_METHODS, NAMES, PROBLEMS, run

RECORDS = json.loads((Path(__file__).parent / "data" / "trajectories.json").read_text())
QUICK = {  # each problem and each way to compute a step; the others are slow tests
    "poisson_2d-auto",
    "poisson_5d-engd",
    "heat_4d-spring_nystrom",
    "log_fokker_planck_9d-kfac",
    "kovasznay-lbfgs",
    "inverse_heat-spring",
    "poisson_2d-hessian_free",
    "poisson_2d-nystrom_ladder",
}
MEASURED = ("loss", "l2")  # what is compared where the details of a step may differ
TOLERANCES = {0.0: (1e-11, None), 1.0: (1e-5, None)}  # at the first steps, and of all records
AT_FIRST = {  # conjugate gradients stop after eight or nine iterations
    "inverse_heat-hessian_free": (1e-3, MEASURED)
}
DIVERGING = {  # losses grow, and digits that differ with them: the last steps that are compared
    "log_fokker_planck_9d-hessian_free": 1,
    "log_fokker_planck_9d-engd": CLOSE,
}


def test_every_method_and_problem_has_records():
    assert RECORDS.keys() == set(NAMES)
    assert {name.split("-")[0] for name in QUICK} == PROBLEMS.keys()
    assert {name.split("-")[1] for name in NAMES} > MORE_METHODS.keys()


CASES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_the_version_before(name):
    *wanted, last = RECORDS[name]
    found = run(name)
    assert [record["step"] for record in wanted] == list(range(CLOSE + 1))
    for old, new in zip(wanted, found, strict=False):
        assert new.keys() == old.keys()
        step = old["step"]
        if step > DIVERGING.get(name, CLOSE):
            return
        near, keys = TOLERANCES.get(step, (3e-2, MEASURED))
        if step == 1:
            near, keys = AT_FIRST.get(name, (near, keys))
        for key in keys or old:
            assert new[key] == pytest.approx(old[key], rel=near, abs=1e-14), (step, key)
    assert found[-1]["step"] == last["step"]
    if name in DIVERGING:
        return
    ends = [record["loss"] for record in (last, found[-1])]
    assert abs(math.log(ends[1] / ends[0])) < math.log(10.0), ends
