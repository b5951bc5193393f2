"""Tables of a report: columns with their explanations, cells with bars, and what they sort by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev

from ...core import Metrics
from ..summary import Numbers, mean


@dataclass(frozen=True)
class Column:
    """A heading, the entry of the glossary that explains it, and how its values are written."""

    key: str
    name: str
    term: str
    write: Callable[[float], str]


@dataclass(frozen=True)
class Cell:
    """What a table shows, what it sorts by, and perhaps a bar, a span or a shade in percent."""

    text: str
    value: float | str | None = None
    bar: float | None = None
    span: tuple[float, float, float] | None = None
    spread: str = ""
    heat: float | None = None


@dataclass(frozen=True)
class Grid:
    """A table that can be sorted; the first cell of a line names it."""

    caption: str
    first: str
    columns: Sequence[Column]
    lines: Sequence[tuple[str, int | None, Sequence[Cell]]]


def percent(value: float) -> str:
    """A share, as people read it."""
    return f"{value:.1%}"


def number(digits: int, value: float) -> str:
    """A number with thousands separated."""
    return f"{value:,.{digits}f}"


WHOLE, HUNDREDTHS, THOUSANDTHS = (partial(number, digits) for digits in (0, 2, 3))
COLUMNS = {
    "asr": Column("asr", "ASR", "asr", percent),
    "forget_acc": Column("forget_acc", "Forget acc", "forget_acc", percent),
    "r_acc": Column("r_acc", "R-Acc", "r_acc", percent),
    "r_acc_std": Column("r_acc_std", "std", "r_acc_worst", percent),
    "r_acc_worst": Column("r_acc_worst", "Worst", "r_acc_worst", percent),
    "r_acc_best": Column("r_acc_best", "Best", "r_acc_worst", percent),
    "target_acc": Column("target_acc", "Target clean", "target_acc", percent),
    "distance": Column("distance", "Distance", "distance", THOUSANDTHS),
    "conflicts": Column("conflicts", "NC", "conflicts", HUNDREDTHS),
    "local_trainings": Column("local_trainings", "Local trainings", "local_trainings", WHOLE),
    "megabytes_up": Column("megabytes_up", "MB up", "megabytes", WHOLE),
    "megabytes_down": Column("megabytes_down", "MB down", "megabytes", WHOLE),
    "megabytes": Column("megabytes", "MB up + down", "megabytes", WHOLE),
    "megabytes_stored": Column("megabytes_stored", "MB stored", "megabytes_stored", WHOLE),
    "seconds": Column("seconds", "Seconds", "seconds", WHOLE),
}
RESULTS = {
    "asr_1": Column("asr_1", "ASR¹", "asr", percent),
    "forget_acc_1": Column("forget_acc_1", "Forget acc¹", "forget_acc", percent),
    "r_acc_1": Column("r_acc_1", "R-Acc¹", "r_acc", percent),
    "r_acc_worst_1": Column("r_acc_worst_1", "Worst¹", "r_acc_worst", percent),
    "asr_2": Column("asr_2", "ASR²", "asr", percent),
    "forget_acc_2": Column("forget_acc_2", "Forget acc²", "forget_acc", percent),
    "r_acc_2": Column("r_acc_2", "R-Acc²", "r_acc", percent),
    "r_acc_worst_2": Column("r_acc_worst_2", "Worst²", "r_acc_worst", percent),
    **{key: COLUMNS[key] for key in ("target_acc", "distance", "conflicts")},
}
COSTS = ("conflicts", "local_trainings", "megabytes_up", "megabytes_down", "megabytes_stored", "seconds")


def bars(caption: str, first: str, rows: Mapping[str, Sequence[Numbers]], places: Mapping[str, int]) -> Grid:
    """Clients, conflicts and costs with a bar in each cell; a bar's length is its share of the largest."""
    keys = [key for key in COSTS if any(of.get(key) for many in rows.values() for of in many)]
    most = {key: max(mean(found, key) or 0.0 for found in rows.values()) for key in keys}
    spans = any("r_acc_worst" in of for many in rows.values() for of in many)
    columns = [COLUMNS[key] for key in keys]
    lines = []
    for row, found in rows.items():
        cells = [cell(COLUMNS[key], [of[key] for of in found if key in of], most[key]) for key in keys]
        lines.append((row, places.get(row), [span(found), *cells] if spans else cells))
    clients = Column("span", "Worst – mean – best", "r_acc_worst", percent)
    return Grid(caption, first, [clients, *columns] if spans else columns, lines)


def span(found: Sequence[Numbers]) -> Cell:
    """The retained clients at the end, from the worst to the best."""
    values = [mean(found, key) for key in ("r_acc_worst", "r_acc", "r_acc_best")]
    worst, middle, best = (100 * (value or 0.0) for value in values)
    if values[0] is None:
        return Cell("–")
    return Cell(f"{worst:.0f} – {middle:.0f} – {best:.0f} %", values[0], None, (worst, middle, best))


def cell(column: Column, values: Sequence[float], most: float | None = None) -> Cell:
    """The mean of the values, with their deviation, and a bar where the largest mean is given."""
    if not values:
        return Cell("–")
    middle = fmean(values)
    spread = f"±{column.write(stdev(values)).removesuffix('%')}" if len(values) > 1 else ""
    return Cell(
        column.write(middle), middle, None if most is None else 100 * middle / (most or 1), spread=spread
    )


def values(row: Metrics, key: str) -> list[float]:
    """One value, or none where it was not measured."""
    return [float(row[key])] if key in row else []


def heat(caption: str, first: str, rows: Sequence[tuple[str, int | None, Metrics]]) -> Grid | None:
    """Each retained client's accuracy, the cell shaded by it; nothing where no row has measured clients."""
    found = [(name, place, clients(row)) for name, place, row in rows]
    known = sorted({client for *_, of in found for client in of}, key=lambda client: (len(client), client))
    columns = [Column(client, client.replace("-", " "), "r_acc_client", percent) for client in known]
    lines = [(name, place, [_shaded(of.get(client)) for client in known]) for name, place, of in found if of]
    return Grid(caption, first, columns, lines) if lines else None


def clients(row: Metrics) -> dict[str, float]:
    """The accuracy of each retained client, where a round has measured it."""
    return {key.removeprefix("r_acc "): float(of) for key, of in row.items() if key.startswith("r_acc ")}


def _shaded(value: float | None) -> Cell:
    return Cell("–") if value is None else Cell(percent(value), value, heat=100 * value)
