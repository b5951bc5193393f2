"""Figures of a run, from its folder alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core import Metrics
from ..measures.metrics import metric
from .drawing import BLUE, GREY, VERMILION, drawing, save
from .runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def curves(run: Run) -> Path:
    """Forgetting and utility over both stages, and the distance to ω⁰ below; written as SVG."""
    rows = run.rows
    with drawing({}) as pyplot:
        figure, (scores, distance) = pyplot.subplots(
            2, 1, figsize=(7, 4.8), sharex=True, height_ratios=[3, 1], layout="constrained"
        )
        _scores(scores, run)
        _distance(distance, rows)
        for axes in (scores, distance):
            _stages(axes, run, labelled=axes is scores)
        distance.set_xlabel("round")
        (path,) = save(figure, [run.folder / "curves.svg"])
        return path


def _scores(axes: Axes, run: Run) -> None:
    forgetting, utility = (_values(run, key) for key in (run.forgetting, run.utility))
    worst, best = (_values(run, f"{run.utility}_{end}") for end in ("worst", "best"))
    if worst and best:
        rounds = [*worst]
        axes.fill_between(rounds, [*worst.values()], [*best.values()], color=BLUE, alpha=0.15, linewidth=0)
        axes.annotate(
            "worst to best retained client",
            (rounds[-1], worst[rounds[-1]]),
            xytext=(-4, 4),
            textcoords="offset points",
            ha="right",
            color=BLUE,
            fontsize=8,
        )
    lines = [
        (key, values, colour, dash)
        for key, values, colour, dash in (
            (run.utility, utility, BLUE, "-"),
            (run.forgetting, forgetting, VERMILION, "--"),
        )
        if key and values
    ]
    ends = [[*values.values()][-1] for _, values, _, _ in lines]
    shares = all(metric(key).unit == "share" for key, *_ in lines)
    # Move the labels apart if two curves end close to each other.
    offset = 6 if shares and len(ends) == 2 and abs(ends[0] - ends[1]) < 0.06 else 0
    for (key, values, colour, dash), end in zip(lines, ends, strict=True):
        axes.plot([*values], [*values.values()], color=colour, linewidth=1.8, linestyle=dash)
        above = offset if end == max(ends) else -offset
        _label(axes, [*values][-1], end, metric(key).title, colour, above)
    if shares:
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def _values(run: Run, key: str | None) -> dict[float, float]:
    return {float(row["elapsed"]): float(row[key]) for row in run.evaluated if key in row}


def _distance(axes: Axes, rows: Sequence[Metrics]) -> None:
    axes.plot([float(row["elapsed"]) for row in rows], [float(row["distance"]) for row in rows], color=GREY)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("‖ω − ω⁰‖")


def _stages(axes: Axes, run: Run, *, labelled: bool) -> None:
    """A line between stages, and the names of the stages above."""
    spans: dict[str, list[float]] = {}
    for row in run.rows[1:]:
        spans.setdefault(run.stage(str(row["stage"])), []).append(float(row["elapsed"]))
    for number, (stage, rounds) in enumerate(spans.items()):
        first = rounds[0] - 1
        if number:
            axes.axvline(first, color=GREY, linewidth=0.8, linestyle=":")
        if labelled:
            axes.text(
                (first + rounds[-1]) / 2,
                1.03,
                stage,
                transform=axes.get_xaxis_transform(),
                ha="center",
                color=GREY,
                fontsize=9,
            )


def _label(axes: Axes, x: float, y: float, text: str, colour: str, above: float) -> None:
    axes.annotate(text, (x, y), xytext=(6, above), textcoords="offset points", va="center", color=colour)
