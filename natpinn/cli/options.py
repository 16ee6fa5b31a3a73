"""Options that several commands have."""

from typing import Annotated

import typer

JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def device_count(text: str | None) -> int | str | None:
    """A number of devices, or a word for them, as settings have it."""
    return int(text) if text and text.isdecimal() and len(text) < 10 else text
