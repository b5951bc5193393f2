"""What all figures share: colours, one style for each method, notes, and how they are written."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core import FedUnlearnError
from ...record import write
from ..names import NAMES

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

# Okabe and Ito's palette, told apart with any colour vision; without yellow, which is too light for lines.
VERMILION, BLUE, GREEN, ORANGE = "#D55E00", "#0072B2", "#009E73", "#E69F00"
PURPLE, SKY, BLACK, GREY = "#CC79A7", "#56B4E9", "#000000", "#6E6E6E"
PALETTE = (VERMILION, BLACK, BLUE, SKY, GREEN, ORANGE, PURPLE, GREY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
DASHES: tuple[Any, ...] = ((0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))

COLUMN, PAGE = 3.4, 7.0
"""Width in inches of a column of print, and of a page."""

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
    """How one method looks in every figure."""

    name: str
    colour: str
    dash: Any
    marker: str


def style(row: str, rows: Iterable[str] = ()) -> Style:
    """Known methods look the same everywhere; others, after them, by their order among ``rows``."""
    known = [*NAMES, *sorted(set(rows) - NAMES.keys())]
    number = known.index(row)
    turn = number // len(PALETTE)
    # The variants of FedOSD are in the second turn: moved on by one, none has its colour.
    return Style(
        NAMES.get(row, row),
        PALETTE[(number + turn) % len(PALETTE)],
        DASHES[(number - 1) % len(DASHES)] if number else "-",
        MARKERS[(number + 3 * turn) % len(MARKERS)],
    )


@contextmanager
def drawing(settings: Mapping[str, Any] = PRINT) -> Iterator[Any]:
    """Pyplot with the style of the figures; what is drawn with it twice has the same bytes."""
    try:
        import matplotlib
    except ImportError:
        raise FedUnlearnError("figures need matplotlib: pip install 'fedunlearn[report]'") from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    base: dict[Any, Any] = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "svg.hashsalt": "fedunlearn",
    }
    with pyplot.rc_context(base | dict(settings)):
        yield pyplot


def save(figure: Figure, paths: Sequence[Path]) -> list[Path]:
    """Writes a figure in the formats that the suffixes name, without dates, and closes it."""
    from matplotlib import pyplot

    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    for path in paths:
        image = io.BytesIO()
        figure.savefig(image, format=path.suffix[1:], dpi=160, metadata=undated.get(path.suffix))
        write(path, image.getvalue())
    pyplot.close(figure)
    return list(paths)


def vectors(figure: Figure, path: Path) -> list[Path]:
    """Writes ``path``, which has no suffix, as SVG and as PDF."""
    return save(figure, [path.with_name(f"{path.name}.{kind}") for kind in ("svg", "pdf")])


def note(figure: Figure, *sentences: str) -> None:
    """What a reader must know, in small letters below the figure."""
    text = ". ".join(sentence for sentence in sentences if sentence)
    if text:
        wrapped = textwrap.fill(text + ".", int(22.5 * figure.get_figwidth()))
        figure.supxlabel(wrapped, x=0.01, ha="left", fontsize=6.5, color=GREY)


def legend(figure: Figure, entries: Mapping[str, Artist]) -> None:
    """Names above a figure in which they have no room, in as few lines as fit."""
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
