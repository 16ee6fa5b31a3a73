"""The records of experiments become tables and verdicts."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
results = pytest.importorskip("results")


def row(experiment, method, **columns):
    empty = dict.fromkeys(("steps", "seconds", "best_l2", "rows", "seconds_to_1e-03"), "")
    empty |= {"effective_dimension": "", "effective_dimension_half_way": "", "seed": "0"}
    return {"experiment": experiment, "method": method, **empty, **columns}


def test_claims_hold_fail_or_are_not_measured():
    rows = [
        row("poisson_5d", "engd", steps="10", seconds="10"),
        row("poisson_5d", "engd_w", steps="400", seconds="10"),
        row("poisson_100d", "spring", best_l2="0.2"),
        row("poisson_100d", "engd_w", best_l2="0.1"),
        row("poisson_5d_large", "engd_w_5000", best_l2="1e-6", **{"seconds_to_1e-03": "1"}),
        row("poisson_5d_large", "nystrom_gpu_5000", best_l2="1e-2"),
        row(
            "effective_dimension",
            "poisson_5d",
            rows="100",
            effective_dimension="60",
            effective_dimension_half_way="62",
        ),
    ]
    said = results.claims(rows)
    assert said[0].startswith("holds: Woodbury")
    assert said[1].startswith("not measured")
    assert said[2].startswith(
        "NOT REPRODUCED: SPRING is at least as good as ENGD-W on poisson_100d"
    )
    assert said[3].startswith("not measured")
    assert said[6].startswith("NOT REPRODUCED: a sketch is faster to 1e-3 with 5000 rows")
    assert said[7].startswith("holds: and not better at the end with 5000 rows")
    assert said[10].startswith("holds: the effective dimension has a plateau")
    assert said[11].startswith("not measured")


def test_published_runs_are_matched_by_problem_method_rule_batch_and_net():
    published = results.read(results.PUBLISHED)
    ours = {"problem": "heat_4d", "optimizer": "spring", "step_size": "fixed_lr", "rows": "350"}
    ours["net"] = "mlp-tanh-256-256-128-128"
    assert results.find(published, ours)["best_l2"] == "3.8033e-05"
    assert results.find(published, ours | {"rows": "351"}) is None
    assert results.find(published, ours | {"net": "mlp-tanh-64-64-48-48"}) is None
    adam = {"problem": "poisson_5d", "optimizer": "adam", "step_size": "fixed_lr", "rows": "3500"}
    adam["net"] = "mlp-tanh-64-64-48-48"
    assert results.find(published, adam)["step_size"] == "own"
