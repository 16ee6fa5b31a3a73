"""What natpinn raises when an input cannot work, and how it suggests the right one."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """An input that cannot work; the message says the value, the reason and the remedy.

    It is a `ValueError`, and is raised before anything is computed where that is possible.

        import natpinn

        try:
            natpinn.Box([0, 0], [1, 0])
        except natpinn.InputError as error:
            print(error)
    """


class NatpinnWarning(UserWarning):
    """A warning that something went wrong and the run goes on, as when a disk is full.

    It is a `UserWarning`, which Python can turn into an error:

        import warnings

        import natpinn

        warnings.simplefilter("error", natpinn.NatpinnWarning)
    """


def printable(text: str) -> str:
    """A text as a terminal may show it: what would move the cursor or change colors is spelled."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that is in no table, with the nearest name that is."""
    known = list(known)
    near = [k for k in known if k.rpartition(".")[2] == name.rpartition(".")[2]]
    near = near or difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return InputError(f"unknown {kind} {name!r}: {hint}")
