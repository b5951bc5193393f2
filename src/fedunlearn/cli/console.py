"""What the command line prints, on terminals of any width and encoding."""

from __future__ import annotations

import codecs
import io
import sys
import unicodedata
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

out = Console(highlight=False, markup=False)

PLAIN = {
    "ω": "w",
    "Δ": "D",
    "η": "eta",
    "–": "-",
    "—": "-",
    "−": "-",
    "·": ".",
    "×": "x",
    "±": "+-",
    "→": "->",
    "≤": "<=",
    "≥": ">=",
}
"""Spellings for terminals whose encoding lacks a character; other characters lose their accents."""


def print_in_any_encoding() -> None:
    """Replaces characters that a terminal's encoding lacks, instead of failing at the first of them."""
    codecs.register_error("fedunlearn-plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="fedunlearn-plain")


def _plain(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)

    def spelled(letter: str) -> str:
        known = PLAIN.get(letter) or unicodedata.normalize("NFKD", letter)
        return known.encode("ascii", "ignore").decode() or "?"

    return "".join(map(spelled, error.object[error.start : error.end])), error.end


def print_table(lines: Sequence[Sequence[str]]) -> None:
    """Header and rows; a table wider than the terminal is split, and each part repeats the first column."""
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for columns in _parts(widths, out.width):
        header, *rows = [[line[column] for column in columns] for line in lines]
        table = _bare_table()
        for name in header:
            table.add_column(name, justify="right" if name else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        out.print(table)
        out.print()


def _parts(widths: Sequence[int], width: int) -> list[list[int]]:
    """Which columns stand beside each other."""
    parts, used = [[0]], widths[0]
    for column in range(1, len(widths)):
        used += 2 + widths[column]
        if used > width and len(parts[-1]) > 1:
            parts.append([0])
            used = widths[0] + 2 + widths[column]
        parts[-1].append(column)
    return parts


def print_text(text: str) -> None:
    """Sentences: wrapped between words on a terminal, and whole lines in a file."""
    out.print(text, soft_wrap=not out.is_terminal)


def print_list(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Header and rows; a long last cell continues in the next line."""
    table = _bare_table()
    for name in header[:-1]:
        table.add_column(name, no_wrap=True)
    table.add_column(header[-1], overflow="fold")
    for row in rows:
        table.add_row(*row)
    out.print(table)


def print_facts(rows: Iterable[tuple[str, str]]) -> None:
    """A name and a sentence in each row; a long sentence continues below its beginning."""
    table = _bare_table()
    table.show_header = False
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    out.print(table)


def _bare_table() -> Table:
    return Table(box=None, pad_edge=False, header_style="bold")
