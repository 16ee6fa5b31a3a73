"""What natpinn raises when an input cannot work, and how it suggests the right one."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """An input that cannot work: the message says the value, the reason and the remedy."""


class NatpinnWarning(UserWarning):
    """Something went wrong, and the run goes on."""


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that is in no table, with the nearest name that is."""
    known = list(known)
    near = [k for k in known if k.rpartition(".")[2] == name.rpartition(".")[2]]
    near = near or difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return InputError(f"unknown {kind} {name!r}: {hint}")
