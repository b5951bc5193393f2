"""Names at the ends of lines, placed so that none covers another."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from .style import SMALL, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

ASIDE = 1.08
"""Where names stand, in widths of the axes."""

GAP = 8.2
"""Points from one name to the next."""


def apart(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The places, moved as little as it takes to have a gap between any two; in the same order."""
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
    """Names at the right of lines that end at the given points, spread so that none covers another."""
    written = [
        [_name(axes, x, y, of) for x, y, of in sorted(lines, key=lambda line: line[1])]
        for axes, lines in panels
    ]
    figure.draw_without_rendering()
    for (axes, _), names in zip(panels, written, strict=True):
        height = axes.get_window_extent().height * 72 / figure.dpi
        onto = axes.transData + axes.transAxes.inverted()
        places = [float(onto.transform(name.xy)[1]) for name in names]
        for name, place in zip(names, apart(places, GAP / height, 0.02, 0.98), strict=True):
            name.set_position((ASIDE, place))


def _name(axes: Axes, x: float, y: float, of: Style) -> Annotation:
    line = {"arrowstyle": "-", "color": of.colour, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 2}
    return axes.annotate(
        of.name,
        (x, y),
        xytext=(ASIDE, 0.5),
        textcoords="axes fraction",
        va="center",
        fontsize=SMALL,
        arrowprops={**line, "relpos": (0, 0.5)},
    )
