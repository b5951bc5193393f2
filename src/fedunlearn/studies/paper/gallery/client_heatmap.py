"""A heat map of the accuracy of each retained client.

It shows one seed, because the client of the same number holds other data with another seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ....core import FedUnlearnError
from ..results import Results, Scores, retained
from .selection import Selection, origin, select
from .style import PAGE, SMALL, drawing, note, vectors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

FEW = 12
"""With more clients, each stage needs the width of a page."""


def clients(results: Results, column: str, rows: Sequence[str], path: Path) -> list[Path]:
    """A heat map of rows and retained clients after each stage, with ω⁰ first; accuracies in percent."""
    shown = _clientwise(results, column, rows)
    many = len(_clients(shown)) > FEW
    with drawing() as pyplot:
        height = 0.19 * (1 + len(shown.runs))
        figure, grid = pyplot.subplots(
            *((2, 1) if many else (1, 2)),
            figsize=(PAGE, 0.8 + height * (2 if many else 1) + (0.5 if many else 0)),
            layout="constrained",
            sharex=True,
            sharey=True,
        )
        for axes, number, title in zip(
            grid, (1, 2), ("after unlearning", "after post-training"), strict=True
        ):
            lines = {"ω⁰": origin(shown)}
            lines |= {shown.styles[row].name: runs[0].stage(number) for row, runs in shown.runs.items()}
            _heat(axes, lines, _clients(shown), small=many)
            axes.set_title(f"R-Acc in percent, {title}", loc="left", fontsize=8)
        for axes in grid[-1:] if many else grid:
            axes.set_xlabel("retained client")
        _note(figure, shown)
        return vectors(figure, path)


def _heat(axes: Axes, lines: Mapping[str, Scores], known: Sequence[str], *, small: bool) -> None:
    from matplotlib import colormaps

    shades = colormaps["cividis"]
    for place, scores in enumerate(lines.values()):
        found = dict(retained(scores))
        for at, client in enumerate(known):
            value = found.get(client)
            colour = "#F2F2F2" if value is None else shades(value)
            axes.add_patch(_cell(at, place, colour))
            axes.text(
                at,
                place,
                "–" if value is None else f"{100 * value:.0f}",
                ha="center",
                va="center_baseline",
                fontsize=5 if small else SMALL,
                color="white" if value is not None and value < 0.5 else "black",
            )
    axes.set_xlim(-0.5, len(known) - 0.5)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    numbers = [client.removeprefix("client-") for client in known]
    axes.set_xticks(range(len(known)), numbers, fontsize=5 if small else SMALL)
    axes.set_yticks(range(len(lines)), list(lines))
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _cell(x: float, y: float, colour: object) -> Rectangle:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white", linewidth=0.8)


def _clientwise(results: Results, column: str, rows: Sequence[str]) -> Selection:
    shown = select(results, column, rows, alone=True)
    if not _clients(shown):
        raise FedUnlearnError(
            f"the runs of column {column!r} have no accuracy of each client: run them again with a "
            "version of fedunlearn that writes r_acc CLIENT",
            code="missing",
        )
    return shown


def _clients(shown: Selection) -> list[str]:
    """All clients that any row measured at its end, in numerical order."""
    together = {
        f"r_acc {client}": accuracy
        for runs in shown.runs.values()
        for client, accuracy in retained(runs[0].recovered or runs[0].unlearned)
    }
    return [client for client, _ in retained(together)]


def _note(figure: Figure, shown: Selection) -> None:
    seeds = sorted({runs[0].seed for runs in shown.runs.values()})
    note(
        figure,
        f"Seed {' and '.join(map(str, seeds))} only, because clients hold other data with another seed",
        shown.missing,
    )
