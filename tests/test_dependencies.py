"""What is pinned is needed, and what is needed is pinned."""

from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


def needed(root: str, extra: str) -> set[str]:
    """The names of what is installed and needed, directly or not."""
    installed = {canonicalize_name(d.metadata["Name"]): d for d in distributions()}
    found, left = set(), [(canonicalize_name(root), (extra,))]
    while left:
        name, extras = left.pop()
        if (name, extras) in found or name not in installed:
            continue
        found.add((name, extras))
        left += [
            (canonicalize_name(requirement.name), tuple(sorted(requirement.extras)))
            for requirement in requirements(installed[name], extras)
        ]
    return {str(name) for name, _ in found}


def requirements(package: Distribution, extras: tuple[str, ...]) -> list[Requirement]:
    """Those of a package here, with the extras that are asked for."""
    found = map(Requirement, package.requires or ())
    kinds = [{"extra": extra} for extra in ("", *extras)]
    return [r for r in found if r.marker is None or any(r.marker.evaluate(k) for k in kinds)]


def test_every_pin_is_needed_and_everything_needed_has_a_pin():
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("#")]
    pinned = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in lines}
    versions = {canonicalize_name(d.metadata["Name"]): d.version for d in distributions()}
    if any(versions.get(name) != version for name, version in pinned.items()):
        pytest.skip("other versions are installed than those of constraints.txt")
    assert needed("natpinn", "dev") - {"natpinn"} == set(pinned)
