"""What commands print on stdout: names may come from anyone's folder, so none is markup."""

from rich.console import Console
from rich.table import Table

from ..errors import printable


def show(text: str) -> None:
    """Print a text, in which nothing moves the cursor or changes colors."""
    print(printable(text))


def show_table(table: Table) -> None:
    """Print a table, whose texts are shown as they are."""
    table.title = printable(str(table.title)) if table.title else None
    Console(markup=False, emoji=False).print(table)
