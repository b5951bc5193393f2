"""What all figures share: colours, a style for each method, notes and file formats."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....report.drawing import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, save
from ....report.drawing import drawing as report_drawing
from ..display_names import NAMES

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

PALETTE = (VERMILION, BLACK, BLUE, SKY, GREEN, ORANGE, PURPLE, GREY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
DASHES: tuple[Any, ...] = ((0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))

COLUMN, PAGE = 3.4, 7.0
"""Width of a printed column and of a page, in inches."""

PRINT: dict[str, Any] = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,
}
SMALL = 7


@dataclass(frozen=True)
class Style:
    """The look of a method in every figure."""

    name: str
    colour: str
    dash: Any
    marker: str


def style(row: str, rows: Iterable[str] = ()) -> Style:
    """The style of a row: fixed for known methods, by their order among ``rows`` for others."""
    known = [*NAMES, *sorted(set(rows) - NAMES.keys())]
    number = known.index(row)
    turn = number // len(PALETTE)
    # Shift the colours in each turn, so that no variant of FedOSD (second turn) has its colour. The shift of
    # the markers differs from that of the colours by another number in each of eight turns.
    return Style(
        NAMES.get(row, row),
        PALETTE[(number + turn) % len(PALETTE)],
        DASHES[(number - 1) % len(DASHES)] if number else "-",
        MARKERS[(number + 3 * turn + turn // 4) % len(MARKERS)],
    )


def drawing() -> AbstractContextManager[Any]:
    """Pyplot in the style of print."""
    return report_drawing(PRINT)


def vectors(figure: Figure, path: Path) -> list[Path]:
    """Writes ``path``, which has no suffix, as SVG and as PDF."""
    return save(figure, [path.with_name(f"{path.name}.{kind}") for kind in ("svg", "pdf")])


def note(figure: Figure, *sentences: str) -> None:
    """Writes notes in small type below the figure."""
    text = ". ".join(sentence for sentence in sentences if sentence)
    if text:
        wrapped = textwrap.fill(text + ".", int(22.5 * figure.get_figwidth()))
        figure.supxlabel(wrapped, x=0.01, ha="left", fontsize=6.5, color=GREY)


def legend(figure: Figure, entries: Mapping[str, Artist]) -> None:
    """Writes a legend above the figure, in as few lines as fit."""
    across = 4 if figure.get_figwidth() < PAGE else 8
    lines = ceil(len(entries) / across)
    figure.legend(
        entries.values(),
        entries.keys(),
        loc="outside upper center",
        ncols=ceil(len(entries) / lines),
        fontsize=SMALL,
        frameon=False,
        handlelength=2.4,
        columnspacing=1.0,
        handletextpad=0.4,
        borderaxespad=0.2,
    )
