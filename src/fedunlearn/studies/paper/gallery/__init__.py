"""Figures of a comparison, from its results alone.

Each is written as SVG and PDF at ``path``, which has no suffix; the same results give the same bytes. Rows
without runs are named below the figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..results import Results
from .bars import conflict_bars, costs
from .client_heatmap import clients
from .curves import curves
from .radar import radar
from .tradeoff import tradeoff
from .trigger_pictures import triggers

__all__ = ["clients", "conflict_bars", "costs", "curves", "draw", "radar", "tradeoff", "triggers"]

OF_ALL: Mapping[str, Callable[[Results, Sequence[str], Sequence[str], Path], list[Path]]] = {
    "tradeoff": tradeoff,
    "radar": radar,
    "conflicts": conflict_bars,
}
OF_EACH: Mapping[str, Callable[[Results, str, Sequence[str], Path], list[Path]]] = {
    "curves": curves,
    "clients": clients,
    "costs": costs,
}


def draw(
    figure: str, results: Results, columns: Sequence[str], rows: Sequence[str], path: Path
) -> list[Path]:
    """Draws the named figure: one for all columns, or one per column, depending on the figure."""
    if figure in OF_ALL:
        return OF_ALL[figure](results, columns, rows, path)
    return [
        file
        for column in columns
        for file in OF_EACH[figure](results, column, rows, path.with_name(f"{path.name}-{column}"))
    ]
