"""The problems that natpinn knows by name."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from ..errors import InputError, unknown
from . import fokker_planck, heat, poisson
from .problem import Problem


class Entry(NamedTuple):
    """A problem of the catalogue: how to build it, and the sizes that the paper used."""

    build: Callable[[int], Problem]
    dimension: int  # of space; time comes on top
    widths: tuple[int, ...]
    points: dict[str, int]
    description: str
    evaluation_points: int = 30_000


CATALOGUE = {
    "poisson_2d": Entry(
        poisson.sine_product,
        2,
        (32, 32),
        {"interior": 400, "boundary": 100},
        "-Δu = f on [0,1]², u = sin(πx) sin(πy)",
        4_000,
    ),
    "poisson_5d": Entry(
        poisson.cosine_sum,
        5,
        (64, 64, 48, 48),
        {"interior": 3000, "boundary": 500},
        "-Δu = f on [0,1]⁵, u = Σ cos(πxᵢ)",
    ),
    "poisson_10d": Entry(
        poisson.harmonic,
        10,
        (256, 256, 128, 128),
        {"interior": 3000, "boundary": 500},
        "Δu = 0 on [0,1]¹⁰, u = Σ x₂ᵢ₋₁x₂ᵢ / c",
    ),
    "poisson_100d": Entry(
        poisson.square_norm,
        100,
        (768, 768, 512, 512),
        {"interior": 100, "boundary": 50},
        "-Δu = f on [0,1]¹⁰⁰, u = |x|² / c",
    ),
    "poisson_100d_harmonic": Entry(
        poisson.harmonic,
        100,
        (768, 768, 512, 512),
        {"interior": 100, "boundary": 50},
        "Δu = 0 on [0,1]¹⁰⁰, u = Σ x₂ᵢ₋₁x₂ᵢ / c",
    ),
    "heat_4d": Entry(
        heat.decaying_sines,
        4,
        (256, 256, 128, 128),
        {"interior": 3000, "boundary": 250, "initial": 250},
        "∂ₜu = ¼Δu on [0,1]×[0,1]⁴, u = e⁻ᵗ Σ sin(2xᵢ)",
    ),
    "log_fokker_planck_9d": Entry(
        fokker_planck.spreading_gaussian,
        9,
        (256, 256, 128, 128),
        {"interior": 3000, "initial": 1000},
        "∂ₜq = Δq + |∇q|² + ½x·∇q + d/2 on [0,1]×[-5,5]⁹, a spreading Gaussian",
    ),
}
MOST_DIMENSIONS = 10**5


def get(
    name: str,
    dimension: int | None = None,
    points: Mapping[str, int] | None = None,
    widths: Sequence[int] | None = None,
) -> Problem:
    """A problem of the catalogue, with the network and the batch sizes of the paper or with others.

    **Arguments:**

    - `name`: one of `natpinn.problems.CATALOGUE`, as `"poisson_2d"`; `natpinn list` shows them.
    - `dimension`: of space, without time. Default: the one in the name.
    - `points`: numbers of points in a batch by conditions, as `{"interior": 300}`. Default: the
      paper's.
    - `widths`: the hidden layers of the network. Default: the paper's.

    **Returns:** a `Problem`; the same object for the same arguments.

    **Raises:** `InputError` for an unknown name, and for a dimension that the problem cannot have.

        import natpinn

        problem = natpinn.problems.get("heat_4d", dimension=2, points={"interior": 300})
    """
    if name not in CATALOGUE:
        raise unknown("problem", name, CATALOGUE)
    dimension = CATALOGUE[name].dimension if dimension is None else dimension
    is_whole = isinstance(dimension, int) and not isinstance(dimension, bool)
    if not is_whole or not 1 <= dimension <= MOST_DIMENSIONS:
        raise InputError(
            f"the dimension of a problem is a whole number from 1 to {MOST_DIMENSIONS:,}, got "
            f"{dimension!r}"
        )
    sizes = tuple((points or {}).items())
    return _get(name, dimension, sizes, tuple(CATALOGUE[name].widths if widths is None else widths))


@cache  # one object per problem, so that solving it again does not compile again
def _get(
    name: str, dimension: int, points: tuple[tuple[str, int], ...], widths: tuple[int, ...]
) -> Problem:
    entry = CATALOGUE[name]
    plain = entry.build(dimension).with_points(entry.points | dict(points))
    return Problem(
        plain.conditions,
        plain.solution,
        name=name,
        widths=widths,
        scaled=False,  # as published
        evaluation_points=entry.evaluation_points,
        is_catalogued=True,
    )
