"""The figure of scores and distance over the rounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ....measures.metrics import metric
from ....report.alignment import aligned
from ....report.drawing import GREY
from ..results import Result, Results
from .line_labels import ends
from .selection import Selection, select, spread
from .style import COLUMN, SMALL, Style, drawing, note, vectors

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURES = ("asr", "r_acc", "distance")
FAR = 12
"""The ratio of the largest to the smallest distance from which on the axis is logarithmic."""


def curves(results: Results, column: str, rows: Sequence[str], path: Path) -> list[Path]:
    """ASR, R-Acc and distance over both stages; a marker on each line shows the end of unlearning.

    Post-training is drawn from the planned round on, even if unlearning stopped early or took more rounds.
    Methods without unlearning start from a new model, not from ω⁰.
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
            f"{shown.styles[row].name} starts post-training in round {max(run.turn for run in runs) + 1:.0f}"
            for row, runs in shown.runs.items()
            if planned and _short(runs, planned)
        ]
        note(figure, spread([shown], "bands"), *early, shown.missing)
        ends(figure, panels)
        return vectors(figure, path)


def _stages(grid: Iterable[Axes], planned: float) -> None:
    """A line at the planned end of unlearning, and the names of the stages above."""
    top, *others = grid
    for axes in (top, *others):
        axes.axvline(planned, color=GREY, linewidth=0.7, linestyle=":", zorder=0)
    for text, side in (("unlearning  ", "right"), ("  post-training", "left")):
        where = top.get_xaxis_transform()
        top.text(planned, 1.03, text, transform=where, ha=side, fontsize=SMALL, color=GREY)


def _lines(axes: Axes, key: str, shown: Selection, planned: float | None) -> list[tuple[float, float, Style]]:
    """Draws one line for each row; returns the ends of the lines."""
    found = {row: course for row, runs in shown.runs.items() if (course := _course(runs, key, planned))}
    lasts = {row: fmean(list(course.values())[-1]) for row, course in found.items()}
    axes.set_ylabel(metric(key).title)
    if key != "distance":
        axes.set_ylim(-0.03, 1.03)
    elif max(lasts.values()) > FAR * min(lasts.values()) > 0:
        found = {
            row: {at: values for at, values in course.items() if fmean(values) > 0}
            for row, course in found.items()
        }
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
    """The values of all runs, by round."""
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
    """Whether a method has fewer unlearning rounds by design, rather than because it stopped early."""
    return 0 < max(run.turn for run in runs) < planned and not any(run.stopped for run in runs)
