"""What the command line prints: tables, lists and refusals."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NoReturn

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

out = Console(highlight=False, markup=False)


def print_table(lines: list[list[str]]) -> None:
    """Nothing is cut off where it does not fit: then it is Markdown."""
    from ..report import markdown, shown

    table = shown(lines)
    if Measurement.get(out, out.options.update(max_width=10_000), table).maximum <= out.width:
        out.print(table, end="\n\n")
    else:
        print(markdown(lines), end="\n\n")


def print_list(header: list[str], rows: Iterable[list[str]]) -> None:
    """A list with its header; long cells go on in the next line."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        # A path is worth a second line rather than an ellipsis.
        shown.add_column(name, overflow="fold")
    for row in rows:
        shown.add_row(*row)
    out.print(shown)


def fail(sentence: str, code: int) -> NoReturn:
    """Ends the program with one sentence on standard error."""
    if sentence:
        print(f"fedunlearn: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(code)
