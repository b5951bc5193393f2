"""The paper's radar chart: the spread of the retained clients."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from pathlib import Path
from typing import TYPE_CHECKING

from ....report.drawing import BLUE, GREY, ORANGE, VERMILION
from ....report.summary import mean
from ..results import Results
from .selection import Selection, missing, origin, seeds, select
from .style import COLUMN, PAGE, SMALL, drawing, legend, note, vectors

if TYPE_CHECKING:
    from matplotlib.projections.polar import PolarAxes

POLYGONS = {
    "r_acc_best": ("best client", BLUE, "--", "^"),
    "r_acc": ("mean", ORANGE, "-", "o"),
    "r_acc_worst": ("worst client", VERMILION, ":", "v"),
}


def radar(results: Results, columns: Sequence[str], rows: Sequence[str], path: Path) -> list[Path]:
    """Best, mean and worst retained client after unlearning, with a spoke for each row and one for ω⁰.

    A row with one stage is shown at its end.
    """
    shown = [select(results, column, rows) for column in columns]
    with drawing() as pyplot:
        figure, grid = pyplot.subplots(
            1,
            len(shown),
            figsize=(COLUMN if len(shown) == 1 else PAGE, 3.6 if len(shown) == 1 else 3.9),
            layout="constrained",
            subplot_kw={"projection": "polar"},
            squeeze=False,
        )
        for axes, of in zip(grid.flat, shown, strict=True):
            _spokes(axes, of)
            if len(shown) > 1:
                axes.set_title(of.column, fontsize=8, fontweight="bold", pad=14)
        handles, labels = grid[0, 0].get_legend_handles_labels()
        legend(figure, dict(zip(labels, handles, strict=True)))
        note(figure, seeds(shown), *missing(shown))
        return vectors(figure, path)


def _spokes(axes: PolarAxes, shown: Selection) -> None:
    scores = {"ω⁰": [origin(shown)]} | {
        shown.styles[row].name: [run.unlearned or run.recovered for run in runs]
        for row, runs in shown.runs.items()
    }
    angles = [2 * pi * place / len(scores) for place in range(len(scores))]
    axes.set_theta_zero_location("N")
    axes.set_theta_direction(-1)
    axes.set_xticks(angles, list(scores), fontsize=SMALL)
    axes.set_ylim(0, 1)
    axes.set_yticks([0.25, 0.5, 0.75, 1], ["", "0.5", "", "1"], fontsize=6.5, color=GREY)
    axes.set_rlabel_position(180 / len(scores))
    axes.grid(linewidth=0.4, color="#CCCCCC")
    axes.spines["polar"].set_visible(False)
    for key, (label, colour, dash, marker) in POLYGONS.items():
        values = [mean(found, key) for found in scores.values()]
        axes.plot(
            [*angles, angles[0]],
            [float("nan") if value is None else value for value in (*values, values[0])],
            color=colour,
            linestyle=dash,
            linewidth=1.2,
            marker=marker,
            markersize=3.5,
            label=label,
            clip_on=False,
        )
