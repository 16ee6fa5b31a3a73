"""The documentation is true: code runs, commands exist, links lead somewhere."""

import re
import shlex
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import pytest

import natpinn
from natpinn.cli import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.slow
def test_readme_code_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert blocks
    for block in blocks:
        assert "budget=30" in block
        exec(block.replace("budget=30", "steps=60"), {})
    assert float(capsys.readouterr().out) < 1e-2
    assert (tmp_path / "solution.png").exists()


@pytest.mark.slow
def test_the_code_of_the_guide_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "guide.md").read_text()
    inverse, solutions = re.findall(r"```python\n(.*?)```", text, re.S)
    names: dict[str, Any] = {}
    exec(inverse, names)
    trained = jax.tree.leaves(eqx.filter(names["model"], eqx.is_inexact_array))
    assert sum(leaf.size for leaf in trained) == 32 * 3 + 32 * 33 + 33 + 1

    square = natpinn.Box.unit(2)
    residual = natpinn.Condition(lambda u, x: natpinn.laplacian(u)(x) - 1, square, points=20)
    edge = natpinn.Condition(lambda u, x: u(x), square.boundary, points=20)
    problem = natpinn.Problem({"inside": residual, "edge": edge}, widths=(8,))
    names = {"problem": problem}
    exec(solutions.replace("budget=30", "steps=3").replace("budget=60", "steps=5"), names)
    assert float(names["again"]([0.5, 0.5])) == float(names["solution"]([0.5, 0.5]))


def commands():
    text = "\n".join(page.read_text() for page in PAGES)
    found = re.findall(r"^\s*(?:\| `)?(natpinn solve [^`#\n]*)", text, re.M)
    return sorted({command.strip() for command in found if "FOLDER" not in command})


@pytest.mark.parametrize("command", commands())
def test_documented_commands_are_valid(command, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert not re.search(r"[\[{*]", re.sub(r"'[^']*'", "", command)), "for shells to expand"
    arguments = [a for a in shlex.split(command)[1:] if a != "--dry-run"]
    monkeypatch.setattr("sys.argv", ["natpinn", *arguments, "--dry-run"])
    main()
    assert "[optimizer]" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_architecture_names_files_that_exist():
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`((?:natpinn|tests)/[^`,]+)`", text)
    assert len(named) > 10
    for name in named:
        assert (ROOT / name).exists(), name


def test_readme_names_public_things():
    names = re.findall(r"`(\w+)`", (ROOT / "README.md").read_text())
    operators = {"gradient", "laplacian", "weighted_laplacian", "partial", "divergence", "jacobian"}
    assert operators <= set(names)
    for name in operators | {
        "Box",
        "TimeSpace",
        "Data",
        "Sobol",
        "Held",
        "MLP",
        "spring",
        "engd_w",
    }:
        assert hasattr(natpinn, name)
