"""The examples run on a small budget, reach a known accuracy, and stay short."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
FILES = sorted(EXAMPLES.glob("*.py"))

# Steps of a small budget, and the relative L2 error that they must reach.
BUDGETS = {
    "allen_cahn": (200, 0.6),
    "brusselator": (60, 0.3),
    "burgers": (150, 0.05),
    "conductivity": (60, 0.2),
    "helmholtz": (200, 0.2),
    "inverse_heat": (100, 0.03),
    "klein_gordon": (80, 0.01),
    "kovasznay": (100, 1e-3),
    "pendulum": (300, 1e-6),
}


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_examples_solve_their_problem(path, tmp_path):
    steps, wanted = BUDGETS[path.stem]
    example = runpy.run_path(str(path))
    solution = example["main"](steps=steps, progress=False)
    assert solution.summary["status"] == "finished"
    assert solution.summary["relative_l2"] < wanted
    if path.stem == "inverse_heat":
        assert abs(float(solution.model.kappa) - example["KAPPA"]) < 0.05 * example["KAPPA"]
    solution.plot(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_examples_are_short(path):
    assert len(path.read_text().splitlines()) < 60
