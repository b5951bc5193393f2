"""Bars of conflicts and costs, from the results of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ....core import FedUnlearnError
from ....measures.metrics import metric
from ....report.drawing import BLACK
from ..paper import paper_value
from ..results import Result, Results
from .selection import missing, select, spread
from .style import COLUMN, PAGE, drawing, note, vectors

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COSTS = ("local_trainings", "seconds", "bytes", "bytes_stored")


def conflict_bars(results: Results, columns: Sequence[str], rows: Sequence[str], path: Path) -> list[Path]:
    """Retained clients harmed by an unlearning step; our number above the paper's, if it prints one."""
    shown = [select(results, column, rows) for column in columns]
    counted = {
        run.row for of in shown for runs in of.runs.values() for run in runs if "conflicts" in run.cost
    }
    kept = [row for row in rows if row in counted]
    if not kept:
        raise FedUnlearnError(
            "conflicts were not counted in these runs: set count_conflicts = true", code="missing"
        )
    ran = {row for of in shown for row in of.runs}
    uncounted = [shown[0].styles[row].name for row in rows if row in ran - counted]
    with drawing() as pyplot:
        figure, grid = pyplot.subplots(
            1,
            len(shown),
            figsize=(COLUMN if len(shown) == 1 else PAGE, 0.75 + 0.3 * len(kept)),
            layout="constrained",
            sharey=True,
            sharex=True,
            squeeze=False,
        )
        printed = False
        for axes, of in zip(grid.flat, shown, strict=True):
            theirs = {row: _printed(results, of.column, row) for row in kept}
            printed = printed or any(value is not None for value in theirs.values())
            for place, row in enumerate(kept):
                ours = [run.cost["conflicts"] for run in of.runs.get(row, ()) if "conflicts" in run.cost]
                pair = theirs[row] is not None
                _bar(axes, place - 0.2 if pair else place, ours, of.styles[row].colour, _hundredths)
                if (value := theirs[row]) is not None:
                    _bar(axes, place + 0.2, [value], of.styles[row].colour, _hundredths, hollow=True)
            axes.tick_params(axis="y", length=0)
            axes.set_title(of.column, loc="left", fontsize=8, fontweight="bold")
            axes.set_xlabel(f"{metric('conflicts').title}: clients harmed per round")
            axes.margins(x=0.12)
            axes.set_xlim(left=0)
        _named_bars(grid[0, 0], [shown[0].styles[row].name for row in kept])
        note(
            figure,
            "Filled: ours. Hatched: the paper's" if printed else "",
            spread(shown, "whiskers"),
            f"Not counted: {', '.join(uncounted)}" if uncounted else "",
            *missing(shown),
        )
        return vectors(figure, path)


def _printed(results: Results, column: str, row: str) -> float | None:
    settings = results.settings.get(column)
    found = paper_value(settings, row, 1, "conflicts") if settings else None
    return found.conflicts if found else None


def costs(results: Results, column: str, rows: Sequence[str], path: Path) -> list[Path]:
    """The costs of each row after the request: local trainings, seconds, and megabytes sent and stored."""
    shown = select(results, column, rows)
    with drawing() as pyplot:
        figure, grid = pyplot.subplots(
            2,
            2,
            figsize=(COLUMN, 0.9 + 0.34 * len(shown.runs)),
            layout="constrained",
            sharey=True,
        )
        for axes, key in zip(grid.flat, COSTS, strict=True):
            for place, (row, runs) in enumerate(shown.runs.items()):
                values = [_cost(run, key) for run in runs]
                _bar(axes, place, values, shown.styles[row].colour, _amount)
            axes.tick_params(axis="y", length=0)
            unit = ", MB" if metric(key).unit == "bytes" else ""
            axes.set_title(f"{metric(key).title}{unit}", loc="left", fontsize=8)
            axes.set_xlim(left=0)
            axes.set_xticks([])
            axes.spines["bottom"].set_visible(False)
        _named_bars(grid[0, 0], [shown.styles[row].name for row in shown.runs])
        note(figure, spread([shown], "whiskers"), shown.missing)
        return vectors(figure, path)


def _cost(run: Result, key: str) -> float:
    value = run.cost["bytes_up"] + run.cost["bytes_down"] if key == "bytes" else run.cost[key]
    return value / 1e6 if metric(key).unit == "bytes" else value


def _bar(
    axes: Axes,
    place: float,
    values: Sequence[float],
    colour: str,
    text: Callable[[float], str],
    *,
    hollow: bool = False,
) -> None:
    """The mean as a bar with its number; with several values, a whisker from the lowest to the highest."""
    if not values:
        return
    middle = fmean(values)
    look: dict[str, Any] = (
        {"facecolor": "white", "hatch": "/////"} if hollow else {"facecolor": colour, "alpha": 0.9}
    )
    axes.barh(place, middle, height=0.36, edgecolor=colour, linewidth=0.8, **look)
    if len(values) > 1:
        for colour, width in (("white", 2.2), (BLACK, 0.8)):
            ends = [min(values), max(values)]
            axes.plot(ends, [place, place], color=colour, linewidth=width, marker="|", markersize=4)
    axes.annotate(
        text(middle),
        (max(values), place),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        fontsize=6.5,
    )


def _named_bars(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)


def _hundredths(value: float) -> str:
    return f"{value:.2f}"


def _amount(value: float) -> str:
    """Without decimals; one decimal below ten."""
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"
