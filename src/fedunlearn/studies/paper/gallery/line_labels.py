"""Labels at the ends of lines, placed without overlap."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from .style import SMALL, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

LABEL_X = 1.08
"""Horizontal position of the labels, in widths of the axes."""

GAP = 8.2
"""Vertical distance between labels, in points."""


def apart(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The positions, moved as little as necessary to be at least ``gap`` apart, in the same order."""
    order = sorted(range(len(places)), key=lambda at: places[at])
    blocks: list[list[float]] = []
    for rank, at in enumerate(order):
        blocks.append([places[at] - rank * gap])
        while len(blocks) > 1 and fmean(blocks[-2]) > fmean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    moved = [fmean(block) for block in blocks for _ in block]
    top = max(low, high - (len(places) - 1) * gap)
    found = dict(zip(order, moved, strict=True))
    return [min(max(found[at], low), top) + order.index(at) * gap for at in range(len(places))]


def ends(figure: Figure, panels: Sequence[tuple[Axes, Sequence[tuple[float, float, Style]]]]) -> None:
    """Writes labels to the right of lines that end at the given points, without overlap."""
    written = [
        [_name(axes, x, y, style) for x, y, style in sorted(lines, key=lambda line: line[1])]
        for axes, lines in panels
    ]
    figure.draw_without_rendering()
    for (axes, _), names in zip(panels, written, strict=True):
        height = axes.get_window_extent().height * 72 / figure.dpi
        onto = axes.transData + axes.transAxes.inverted()
        places = [float(onto.transform(name.xy)[1]) for name in names]
        for name, place in zip(names, apart(places, GAP / height, 0.02, 0.98), strict=True):
            name.set_position((LABEL_X, place))


def _name(axes: Axes, x: float, y: float, style: Style) -> Annotation:
    line = {"arrowstyle": "-", "color": style.colour, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 2}
    return axes.annotate(
        style.name,
        (x, y),
        xytext=(LABEL_X, 0.5),
        textcoords="axes fraction",
        va="center",
        fontsize=SMALL,
        arrowprops={**line, "relpos": (0, 0.5)},
    )
