"""Figures of the course of methods, and of what they trade."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from math import ceil, inf
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core import FedUnlearnError
from ...measure.metrics import metric
from ...report.alignment import aligned
from ...report.drawing import BLACK, GREY
from ..results import Result, Results, Scores
from .line_labels import ends
from .selection import Selection, average, missing, origin, seeds, select, spread
from .style import COLUMN, PAGE, SMALL, Style, drawing, legend, note, vectors

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

MEASURES = ("asr", "r_acc", "distance")
FAR = 12
"""Distances whose largest is so many times the smallest are drawn on a logarithmic axis."""


def curves(results: Results, column: str, rows: Sequence[str], path: Path) -> list[Path]:
    """ASR, R-Acc and distance over both stages; a marker on each line where its unlearning ends.

    Post-training begins where it was planned to, also after unlearning that stopped before, or took several
    rounds for one. Methods without unlearning begin with a new model, not with ω⁰.
    """
    shown = select(results, column, rows)
    planned = results.settings.get(column, {}).get("unlearning")
    keys = [key for key in MEASURES if any(_course(runs, key, planned) for runs in shown.runs.values())]
    with drawing() as pyplot:
        height = max(1.3, 0.16 * len(shown.runs) + 0.2)
        figure, grid = pyplot.subplots(
            len(keys),
            1,
            figsize=(COLUMN, 0.6 + height * len(keys)),
            layout="constrained",
            sharex=True,
            squeeze=False,
        )
        panels = [
            (axes, _lines(axes, key, shown, planned)) for key, axes in zip(keys, grid.flat, strict=True)
        ]
        grid[0, 0].margins(x=0.02)
        grid[-1, 0].set_xlabel("round")
        if planned:
            _stages(grid.flat, planned)
        early = [
            f"{shown.styles[row].name} post-trains from round {max(run.turn for run in runs) + 1:.0f} on"
            for row, runs in shown.runs.items()
            if planned and _short(runs, planned)
        ]
        note(figure, spread([shown], "bands"), *early, shown.missing)
        ends(figure, panels)
        return vectors(figure, path)


def _stages(grid: Iterable[Axes], planned: float) -> None:
    """A line where unlearning is planned to end, and the stages' names above."""
    top, *others = grid
    for axes in (top, *others):
        axes.axvline(planned, color=GREY, linewidth=0.7, linestyle=":", zorder=0)
    for text, side in (("unlearning  ", "right"), ("  post-training", "left")):
        where = top.get_xaxis_transform()
        top.text(planned, 1.03, text, transform=where, ha=side, fontsize=SMALL, color=GREY)


def _lines(axes: Axes, key: str, shown: Selection, planned: float | None) -> list[tuple[float, float, Style]]:
    """One line for each row, and where it ends."""
    found = {row: course for row, runs in shown.runs.items() if (course := _course(runs, key, planned))}
    lasts = {row: fmean(list(course.values())[-1]) for row, course in found.items()}
    axes.set_ylabel(metric(key).title)
    if key != "distance":
        axes.set_ylim(-0.03, 1.03)
    elif max(lasts.values()) > FAR * min(lasts.values()) > 0:
        found = {row: {at: of for at, of in course.items() if fmean(of) > 0} for row, course in found.items()}
        axes.set_yscale("log")
        axes.set_ylabel(f"{metric(key).title} (log)")
    for row, course in reversed(list(found.items())):
        of, rounds, middle = shown.styles[row], list(course), [fmean(values) for values in course.values()]
        if len(shown.runs[row]) > 1:
            low, high = ([end(values) for values in course.values()] for end in (min, max))
            axes.fill_between(rounds, low, high, color=of.colour, alpha=0.15, linewidth=0)
        axes.plot(rounds, middle, color=of.colour, linestyle=of.dash, linewidth=1.3, label=row)
        turn = min(max(run.turn for run in shown.runs[row]), planned or inf)
        for at, fill in ((turn, "white"), (rounds[-1], of.colour)):
            if at and at in course and (fill != "white" or at != rounds[-1]):
                look: dict[str, Any] = {"marker": of.marker, "markersize": 4.5, "markerfacecolor": fill}
                axes.plot(at, fmean(course[at]), **look, color=of.colour, clip_on=False)
    if key == "distance" and axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    return [(list(found[row])[-1], last, shown.styles[row]) for row, last in lasts.items()]


def _course(runs: Sequence[Result], key: str, planned: float | None) -> dict[float, list[float]]:
    """By round the values of all runs."""
    each = [
        {
            at: value
            for at, value in zip(run.course["rounds"], run.course.get(key, ()), strict=False)
            if at is not None and value is not None and (at or run.turn)
        }
        for run in runs
    ]
    border = planned if planned and not _short(runs, planned) else 0.0
    return aligned(each, [run.turn for run in runs], border)


def _short(runs: Sequence[Result], planned: float) -> bool:
    """Whether a method's unlearning is planned to be shorter than that of the others, not ended early."""
    return 0 < max(run.turn for run in runs) < planned and not any(run.stopped for run in runs)


def tradeoff(results: Results, columns: Sequence[str], rows: Sequence[str], path: Path) -> list[Path]:
    """Forgetting against utility; an arrow leads from the end of unlearning to that of post-training."""
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
    """Draws the rows of one column; returns the last mark of each by its name."""
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
    """Percentages on a square-root scale, which spreads the small ones."""
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
