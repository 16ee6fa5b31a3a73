"""The numbers that are recorded of a run, by their names."""

import warnings
from typing import Any

from ..errors import NatpinnWarning

RENAMED = {  # one name for one thing, in records and in summaries
    "l2_error": "l2",
    "relative_l2_error": "relative_l2",
    "best_loss": "best_validation_loss",
    "final_loss": "final_validation_loss",
}


class Record(dict[str, Any]):
    """Numbers by their names. Names of earlier versions still work in brackets, with a warning."""

    def __missing__(self, name: str) -> Any:
        if RENAMED.get(name) not in self:
            raise KeyError(name)
        message = f"{name!r} is called {RENAMED[name]!r} now"
        warnings.warn(message, NatpinnWarning, stacklevel=2)
        return self[RENAMED[name]]
