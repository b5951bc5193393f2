"""The figure of the trade-off between forgetting and utility."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ....core import FedUnlearnError
from ....report.drawing import BLACK
from ..results import Results, Scores
from .selection import Selection, average, missing, origin, seeds, select
from .style import COLUMN, PAGE, SMALL, drawing, legend, note, vectors

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes


def tradeoff(results: Results, columns: Sequence[str], rows: Sequence[str], path: Path) -> list[Path]:
    """Forgetting against utility, with an arrow from the end of unlearning to the end of post-training."""
    shown = [select(results, column, rows) for column in columns]
    across = min(len(shown), 3)
    down = ceil(len(shown) / across)
    with drawing() as pyplot:
        figure, grid = pyplot.subplots(
            down,
            across,
            figsize=(COLUMN if across == 1 else PAGE, 0.9 + 2.2 * down),
            layout="constrained",
            sharey=True,
            squeeze=False,
        )
        entries: dict[str, Artist] = {}
        for axes, of in zip_longest(grid.flat, shown):
            if of is None:
                axes.remove()
                continue
            entries |= _points(axes, of)
            axes.set_title(of.column, loc="left", fontsize=8, fontweight="bold")
            axes.set_xlabel("ASR (square-root scale)")
        for axes in grid[:, 0]:
            axes.set_ylabel("R-Acc")
        names = [shown[0].styles[row].name for row in rows]
        legend(figure, {name: entries[name] for name in names if name in entries})
        note(
            figure,
            "Hollow: after unlearning, filled: after post-training, star: ω⁰. Up and left is better",
            seeds(shown),
            *missing(shown),
        )
        return vectors(figure, path)


def _points(axes: Axes, shown: Selection) -> dict[str, Artist]:
    """Draws the rows of one column; returns the last mark of each row by name."""
    _root_scale(axes)
    entries: dict[str, Artist] = {}
    for row, runs in shown.runs.items():
        of = shown.styles[row]
        begin, end = (_place([run.stage(number) for run in runs]) for number in (1, 2))
        if begin and end:
            arrow = {
                "arrowstyle": "-|>,head_width=0.2,head_length=0.35",
                "color": of.colour,
                "linewidth": 0.9,
            }
            axes.annotate("", end, begin, arrowprops={**arrow, "shrinkA": 2, "shrinkB": 2.5})
        for place, fill in ((begin, "white"), (end, of.colour)):
            if place:
                look: dict[str, Any] = {"marker": of.marker, "markersize": 5, "markerfacecolor": fill}
                (entries[of.name],) = axes.plot(
                    *place, **look, color=of.colour, linestyle="none", label=of.name, clip_on=False
                )
    if not entries:
        raise FedUnlearnError(
            f"column {shown.column!r} has no attack success rate: choose a column with a backdoor"
        )
    if start := _place([origin(shown)]):
        axes.plot(*start, marker="*", color=BLACK, markersize=9, linestyle="none", label="ω⁰", clip_on=False)
        axes.annotate("ω⁰", start, xytext=(0, 6), textcoords="offset points", ha="center", fontsize=SMALL)
    axes.margins(y=0.12)
    return entries


def _root_scale(axes: Axes) -> None:
    """Percentages on a square-root scale, which spreads small values."""
    axes.set_xscale("function", functions=(_root, _square))
    axes.set_xlim(-0.001, 1)
    marks = (0, 0.03, 0.15, 0.3, 0.6, 1)
    axes.set_xticks(marks, [f"{mark:g}" for mark in marks])


def _root(values: Any) -> Any:
    return np.sign(values) * np.sqrt(np.abs(values))


def _square(values: Any) -> Any:
    return np.sign(values) * np.square(values)


def _place(found: Sequence[Scores]) -> tuple[float, float] | None:
    scores = average(found)
    return (scores["asr"], scores["r_acc"]) if {"asr", "r_acc"} <= scores.keys() else None
