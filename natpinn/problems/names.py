"""What a problem, its coordinates and its values are called, wherever they are shown."""

import re
from typing import NamedTuple

from ..checks import words
from ..errors import InputError

ARROW = "->"


class Names(NamedTuple):
    """Of the coordinates and of the values; None: x0, x1, …, and u or u0, u1, …"""

    coordinates: tuple[str, ...] | None
    values: tuple[str, ...] | None

    @classmethod
    def parse(cls, text: str | None, dimension: int) -> "Names":
        """Names from a text as "t x -> u v", in which either side may be left out."""
        if text is None:
            return cls(None, None)
        if not isinstance(text, str) or text.count(ARROW) > 1:
            raise InputError(
                f"names are a text of coordinates and values, as in 'x y -> u v', got {text!r}"
            )
        before, _, after = text.partition(ARROW)
        values = words(after, "the values", max(1, len(after.split()))) if after.strip() else None
        coordinates = words(before, "the coordinates", dimension) if before.strip() else None
        return cls(coordinates, values)

    def of_values(self, count: int) -> tuple[str, ...]:
        """A name for each value of a model."""
        if self.values is not None:
            return self.values
        return ("u",) if count == 1 else tuple(f"u{i}" for i in range(count))


def label(name: str, dimension: int | str | None) -> str:
    """A problem of the catalogue in another dimension: heat_4d in three is heat_3d.

    Run folders, reports and pictures say it, so that runs that are not compared have two names.
    """
    if dimension in (None, "none"):
        return name
    return re.sub(r"_\d+d(?=_|$)", f"_{dimension}d", name, count=1)
