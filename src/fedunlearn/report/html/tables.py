"""Tables of the HTML report: cells with a sort key and optionally a bar, a span or a shade."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ...core import Metrics
from ...measures.metrics import client_of, metric
from ..summary import Column, Numbers, column, cost_columns, mean, mean_text


@dataclass(frozen=True)
class Heading:
    """The title of a column, and its glossary entry."""

    title: str
    term: str


@dataclass(frozen=True)
class Cell:
    """A text, its sort key, and optionally a bar, a span or a shade, in percent."""

    text: str
    value: float | str | None = None
    bar: float | None = None
    span: tuple[float, float, float] | None = None
    spread: str = ""
    heat: float | None = None


@dataclass(frozen=True)
class Grid:
    """A sortable table; the first cell of a line is its name."""

    caption: str
    first: str
    headings: Sequence[Heading]
    lines: Sequence[tuple[str, int | None, Sequence[Cell]]]


def heading(column: Column) -> Heading:
    """The heading of a column of numbers."""
    return Heading(column.title, column.metric.key)


def cell(column: Column, found: Sequence[Numbers], most: float | None = None) -> Cell:
    """The mean over runs with its deviation, and a bar if the largest mean is given."""
    values = [numbers[column.key] for numbers in found if column.key in numbers]
    if not values:
        return Cell("–")
    text, spread = mean_text(column.metric, values, column.sign)
    middle = fmean(values)
    return Cell(text, middle, None if most is None else 100 * middle / (most or 1), spread=spread)


def bars(caption: str, first: str, rows: Mapping[str, Sequence[Numbers]], places: Mapping[str, int]) -> Grid:
    """Clients, conflicts and costs, with a bar in each cell that shows its share of the largest value."""
    every = [numbers for found in rows.values() for numbers in found]
    counted = [column("conflicts")] if any(numbers.get("conflicts") for numbers in every) else []
    columns = [*counted, *cost_columns(every)]
    most = {shown.key: max(mean(found, shown.key) or 0.0 for found in rows.values()) for shown in columns}
    spans = any("r_acc_worst" in numbers for numbers in every)
    lines = []
    for row, found in rows.items():
        cells = [cell(shown, found, most[shown.key]) for shown in columns]
        lines.append((row, places.get(row), [span(found), *cells] if spans else cells))
    clients = Heading("Worst – mean – best", "r_acc_worst")
    headings = [heading(shown) for shown in columns]
    return Grid(caption, first, [clients, *headings] if spans else headings, lines)


def span(found: Sequence[Numbers]) -> Cell:
    """The worst, mean and best retained client at the end."""
    values = [mean(found, key) for key in ("r_acc_worst", "r_acc", "r_acc_best")]
    worst, middle, best = (100 * (value or 0.0) for value in values)
    if values[0] is None:
        return Cell("–")
    return Cell(f"{worst:.0f} – {middle:.0f} – {best:.0f} %", values[0], None, (worst, middle, best))


def heat(caption: str, first: str, rows: Sequence[tuple[str, int | None, Metrics]]) -> Grid | None:
    """Each retained client's accuracy in a shaded cell; None if no row has measured clients."""
    found = [(name, place, by_client(row)) for name, place, row in rows]
    known = sorted(
        {client for *_, values in found for client in values}, key=lambda client: (len(client), client)
    )
    headings = [Heading(client.replace("-", " "), "clients") for client in known]
    lines = [
        (name, place, [_shaded(values.get(client)) for client in known])
        for name, place, values in found
        if values
    ]
    return Grid(caption, first, headings, lines) if lines else None


def by_client(row: Metrics) -> dict[str, float]:
    """The accuracy of each retained client that the round measured."""
    return {client_of(key): float(value) for key, value in row.items() if key.startswith("r_acc ")}


def _shaded(value: float | None) -> Cell:
    return Cell("–") if value is None else Cell(metric("r_acc").text(value), value, heat=100 * value)
