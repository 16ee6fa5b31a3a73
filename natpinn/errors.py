"""What natpinn raises when an input cannot work, and how it suggests the right one."""

import difflib
import operator
from collections.abc import Iterable
from typing import Any


class InputError(ValueError):
    """An input that cannot work: the message says the value, the reason and the remedy."""


class NatpinnWarning(UserWarning):
    """Something went wrong, and the run goes on."""


def check_flag(value: object, name: str) -> None:
    """The text "False" would count as true."""
    if not isinstance(value, bool):
        raise InputError(f"{name} is true or false, got {value!r}")


def whole(value: Any, name: str, least: int = 1) -> int:
    """A whole number, Python's or NumPy's; True is none."""
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None or found < least:
        raise InputError(f"{name} must be a whole number from {least}, got {value!r}")
    return found


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that is in no table, with the nearest name that is."""
    known = list(known)
    near = [k for k in known if k.rpartition(".")[2] == name.rpartition(".")[2]]
    near = near or difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return InputError(f"unknown {kind} {name!r}: {hint}")
