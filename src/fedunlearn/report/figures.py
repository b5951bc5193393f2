"""Figures of a run, from its folder alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..core import Metrics
from .drawing import BLUE, GREY, VERMILION, drawing, save
from .tables import measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def curves(folder: Path) -> list[Path]:
    """Forgetting and utility over both stages, and the distance to ω⁰ below; written as SVG and PNG."""
    rows = measured(folder)
    with drawing({}) as pyplot:
        figure, (scores, distance) = pyplot.subplots(
            2, 1, figsize=(7, 4.8), sharex=True, height_ratios=[3, 1], layout="constrained"
        )
        _scores(scores, rows)
        _distance(distance, rows)
        for axes in (scores, distance):
            _stages(axes, rows, labelled=axes is scores)
        distance.set_xlabel("round")
        return save(figure, [folder / "curves.svg", folder / "curves.png"])


def _scores(axes: Axes, rows: list[Metrics]) -> None:
    evaluated = [row for row in rows if "r_acc" in row]
    rounds = [float(row["elapsed"]) for row in evaluated]
    key, name = ("asr", "ASR") if "asr" in evaluated[0] else ("forget_acc", "accuracy on forgotten data")
    utility = [float(row["r_acc"]) for row in evaluated]
    worst = [float(row["r_acc_worst"]) for row in evaluated]
    best = [float(row["r_acc_best"]) for row in evaluated]
    axes.fill_between(rounds, worst, best, color=BLUE, alpha=0.15, linewidth=0)
    axes.annotate(
        "worst to best retained client",
        (rounds[-1], worst[-1]),
        xytext=(-4, 4),
        textcoords="offset points",
        ha="right",
        color=BLUE,
        fontsize=8,
    )
    axes.plot(rounds, utility, color=BLUE, linewidth=1.8)
    aside = 0
    if key in evaluated[0]:
        forgetting = [float(row[key]) for row in evaluated]
        axes.plot(rounds, forgetting, color=VERMILION, linewidth=1.8, linestyle="--")
        # Two curves that end side by side would write over each other's name.
        aside = 6 if abs(utility[-1] - forgetting[-1]) < 0.06 else 0
        below = forgetting[-1] < utility[-1]
        _label(axes, rounds[-1], forgetting[-1], name, VERMILION, -aside if below else aside)
        aside = aside if below else -aside
    _label(axes, rounds[-1], utility[-1], "R-Acc", BLUE, aside)
    axes.set_ylim(-0.03, 1.03)
    axes.set_ylabel("accuracy")


def _distance(axes: Axes, rows: list[Metrics]) -> None:
    axes.plot([float(row["elapsed"]) for row in rows], [float(row["distance"]) for row in rows], color=GREY)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("‖ω − ω⁰‖")


def _stages(axes: Axes, rows: list[Metrics], *, labelled: bool) -> None:
    """A line where one stage ends and the next begins, and the stages' names above."""
    spans: dict[str, list[float]] = {}
    for row in rows[1:]:
        spans.setdefault(str(row["stage"]), []).append(float(row["elapsed"]))
    for number, (stage, rounds) in enumerate(spans.items()):
        first = rounds[0] - 1
        if number:
            axes.axvline(first, color=GREY, linewidth=0.8, linestyle=":")
        if labelled:
            axes.text((first + rounds[-1]) / 2, 1.06, stage, ha="center", color=GREY, fontsize=9)


def _label(axes: Axes, x: float, y: float, text: str, colour: str, above: float) -> None:
    axes.annotate(text, (x, y), xytext=(6, above), textcoords="offset points", va="center", color=colour)
