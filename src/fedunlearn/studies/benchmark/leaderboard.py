"""The leaderboard: every method on the fixed requests of the benchmark, told from the stored results alone.

The page's script computes the same numbers for the requests that a reader selects, so sums are taken in a
fixed order and numbers are rounded as JavaScript rounds them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Literal

from ...report.audits import REFERENCES
from ...report.tables import Lines
from .board import Board, Result, read_board

Cells = Mapping[tuple[str, int], Result | None]
"""The results of a method by request and seed; None where one is missing."""

ABLATION = re.compile(r"(.+)-m\d+")
"""The name of a method with one part changed, such as ``fedosd-m1``."""


def ablation(name: str, methods: Collection[str]) -> bool:
    """Whether it is one of the methods with one part changed."""
    found = ABLATION.fullmatch(name)
    return found is not None and found[1] in methods


@dataclass(frozen=True)
class Column:
    """A column of the leaderboard: how it is told from cells, and which end of it is better."""

    key: str
    title: str
    help: str
    how: Literal["equivalent", "verdicts", "spread", "mean", "most", "words", "failed"]
    digits: int = 0
    signed: bool = False
    unit: Literal["", "%", "bytes"] = ""
    first: Literal["ascending", "descending"] = "ascending"


COLUMNS = (
    Column(
        "equivalent",
        "Equivalent",
        "Cells in which the audit finds the model equivalent to retraining, of those in which the same audit "
        "finds the target in ω⁰. Elsewhere it could not tell whether something was forgotten. A failed or "
        "missing cell counts as not equivalent.",
        "equivalent",
        first="descending",
    ),
    Column(
        "verdicts",
        "Verdicts",
        "The verdicts of all cells. E: equivalent to retraining. U: under-forgotten. O: over-forgotten. "
        "?: inconclusive, no signal, or no verdict. ×: failed or missing.",
        "verdicts",
        first="descending",
    ),
    Column(
        "auc",
        "|Δ AUC|",
        "How far the AUC of the membership test on the worst target is from that of retraining, on either "
        "side. 0 is best.",
        "spread",
        3,
    ),
    Column(
        "asr",
        "Δ ASR",
        "Success rate of the planted backdoor minus that of retraining, in percentage points; backdoored "
        "requests only.",
        "spread",
        1,
        True,
    ),
    Column(
        "r_acc",
        "Δ R-Acc",
        "Accuracy on unseen data of the retained clients minus that of retraining, in percentage points.",
        "spread",
        1,
        True,
        first="descending",
    ),
    Column(
        "worst",
        "Δ worst",
        "Accuracy of the worst retained client minus that of retraining, in percentage points.",
        "spread",
        1,
        True,
        first="descending",
    ),
    Column(
        "harm",
        "Loss",
        "The largest loss of accuracy of one retained client against retraining, in percentage points, over "
        "all cells.",
        "most",
        1,
    ),
    Column(
        "harmed",
        "Harm",
        "Share of cells in which at least one retained client loses more than the noise floor explains.",
        "mean",
        unit="%",
    ),
    Column(
        "work",
        "Work",
        "Local trainings as a share of those of one retraining; successive requests are answered one by one.",
        "mean",
        1,
        unit="%",
    ),
    Column("time", "Time", "Wall time as a share of that of retraining.", "mean", 1, unit="%"),
    Column("bytes", "Moved", "Bytes that the server and the clients sent each other.", "mean", unit="bytes"),
    Column("stored", "Stored", "Bytes kept about clients between rounds.", "mean", unit="bytes"),
    Column(
        "epsilon",
        "ε",
        "The largest certified ε, at δ = 1e-5 by default; certified methods only. It does not hold against "
        "those who know the seed, and the seeds of the benchmark are public.",
        "most",
        2,
    ),
    Column("online", "Online", "Who must take part after the request.", "words"),
    Column("source", "Source", "What the method was implemented from.", "words"),
    Column("failed", "Failed", "Cells that failed or are missing. Means are over the others.", "failed"),
)
RULE = (
    "Methods are ordered by the share of cells that are equivalent to retraining, among the cells in which "
    "the audit finds the target in ω⁰; a failed or missing cell counts as not equivalent. Ties are ordered "
    "by Δ R-Acc. There is no combined score."
)
INTERVALS = (
    "Numbers are means: first over the requests of a seed, then over seeds. ± is half of the 95 % t-interval "
    "over seeds."
)


@dataclass(frozen=True)
class Shown:
    """A cell of the table: its text, the small print, a title, and what it is sorted by."""

    text: str
    value: float | str | None = None
    small: str = ""
    title: str = ""
    counts: Mapping[str, int] | None = None


def columns(board: Board) -> list[Column]:
    """The columns that some cell fills."""
    filled = {key for result in board.results.values() for key in result.numbers}
    return [each for each in COLUMNS if each.how not in ("spread", "mean", "most") or each.key in filled]


def ranked(board: Board, requests: Sequence[str]) -> list[tuple[str, list[Shown]]]:
    """The methods and their cells, in the order of the ranking rule."""
    places = [number for number, column in enumerate(columns(board)) if column.key in ("equivalent", "r_acc")]

    def order(row: tuple[str, list[Shown]]) -> list[float]:
        values = [row[1][place].value for place in places]
        return [math.inf if value is None else -float(value) for value in values]

    return sorted(((method, line(board, method, requests)) for method in board.methods), key=order)


def line(board: Board, method: str, requests: Sequence[str]) -> list[Shown]:
    """What the table says about a method on these requests."""
    cells = {at: board.results.get((method, *at)) for at in board.places(requests)}
    return [_told(column, board, method, cells) for column in columns(board)]


def _told(column: Column, board: Board, method: str, cells: Cells) -> Shown:
    if column.how == "words":
        word = str(board.values["methods"].get(method, {}).get(column.key) or "")
        return Shown(word or "–", word or None)
    if column.how == "failed":
        return _failed(cells)
    if column.how not in ("equivalent", "verdicts"):
        return _measured(column, cells)
    if method in REFERENCES and not any(cell and cell.verdict for cell in cells.values()):
        return Shown("–")
    if column.how == "verdicts":
        return _verdicts(cells)
    found = [cell for at, cell in cells.items() if at in board.found]
    hits = sum(cell is not None and cell.letter == "E" for cell in found)
    return Shown(f"{hits}/{len(found)}", hits / len(found)) if found else Shown("–")


def _verdicts(cells: Cells) -> Shown:
    counts = Counter("×" if cell is None else cell.letter for cell in cells.values())
    shown = {letter: counts[letter] for letter in "EUO?×" if counts[letter]}
    words = dict(zip("EUO?×", ("equivalent", "under", "over", "undecided", "failed or missing"), strict=True))
    title = ", ".join(f"{count} {words[letter]}" for letter, count in shown.items())
    text = " ".join(f"{count} {letter}" for letter, count in shown.items())
    return Shown(text or "–", float(counts["E"]), title=f"{title} of {len(cells)} cells", counts=shown)


def _failed(cells: Cells) -> Shown:
    missing = sum(cell is None for cell in cells.values())
    reasons = dict.fromkeys(cell.reason for cell in cells.values() if cell and cell.failed)
    failed = missing + sum(cell is not None and cell.failed for cell in cells.values())
    title = "; ".join([*reasons, *([f"{missing} missing"] if missing else [])])
    return Shown(f"{failed}/{len(cells)}" if failed else "0", float(failed), title=title)


def _measured(column: Column, cells: Cells) -> Shown:
    by_seed: dict[int, list[float]] = {}
    for cell in cells.values():
        if cell is not None and column.key in cell.numbers:
            by_seed.setdefault(cell.seed, []).append(cell.numbers[column.key])
    if not by_seed:
        return Shown("–")
    if column.how == "most":
        most = max(max(values) for values in by_seed.values())
        return Shown(written(column, most), most)
    centre, half = interval([_mean(values) for values in by_seed.values()])
    if column.how == "mean" or half is None:
        return Shown(written(column, centre), centre)
    return Shown(written(column, centre), centre, f"±{fixed(half, column.digits)}")


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and half of its 95 % t-interval; None for one value."""
    centre, count = _mean(values), len(values)
    if count < 2:
        return centre, None
    squares = _mean((value - centre) * (value - centre) for value in values)
    return centre, t_quantile(count - 1) * math.sqrt(squares / (count - 1))


def t_quantile(freedom: int, level: float = 0.95) -> float:
    """The t of a two-sided interval: the distribution of Student has a finite series for whole degrees."""

    def within(angle: float) -> float:
        sine, cosine = math.sin(angle), math.cos(angle)
        odd = freedom % 2
        term = total = (cosine if odd else 1.0) if freedom > 1 else 0.0
        for k in range(1 + odd, freedom - 2, 2):
            term *= cosine * cosine * k / (k + 1)
            total += term
        return 2 / math.pi * (angle + sine * total) if odd else sine * total

    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) < level else (low, middle)
    return math.tan(low) * math.sqrt(freedom)


def _mean(values: Iterable[float]) -> float:
    """Added one after the other: ``sum`` compensates in some versions of Python, JavaScript never does."""
    total, count = 0.0, 0
    for value in values:
        total, count = total + value, count + 1
    return total / count


def fixed(value: float, digits: int, signed: bool = False) -> str:
    """A number with so many digits; halves are rounded away from zero, as by ``toFixed``."""
    text = str(Decimal(abs(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))
    sign = "" if not text.strip("0.") else "−" if value < 0 else "+" if signed else ""
    return sign + text


def written(column: Column, value: float) -> str:
    """A number as the column writes it."""
    if column.unit == "bytes":
        for name, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
            if value >= size:
                return f"{fixed(value / size, 1)} {name}"
        return f"{fixed(value, 0)} B"
    return fixed(value, column.digits, column.signed) + column.unit


def leaderboard_tables(results: Path) -> dict[str, Lines]:
    """The leaderboard as lines of Markdown cells: of all requests, then of each kind; references last."""
    board = read_board(results)
    kinds: dict[str, list[str]] = {"All requests": list(board.requests)}
    for name in board.requests:
        kinds.setdefault(f"{board.tags[name]['kind']} requests".capitalize(), []).append(name)
    return {kind: _lines(board, requests) for kind, requests in kinds.items()}


def titled(board: Board, name: str) -> str:
    """The name of a row; a method that is known from an abstract alone says so."""
    source = board.values["methods"].get(name, {}).get("source")
    return REFERENCES.get(name, f"{name} (after the abstract)" if source == "abstract" else name)


def _lines(board: Board, requests: Sequence[str]) -> Lines:
    rows = [
        *ranked(board, requests),
        *((name, line(board, name, requests)) for name in board.references),
    ]
    return [
        ["Method", *(_cell(column.title) for column in columns(board))],
        *(
            [_cell(titled(board, name)), *(_cell(f"{c.text} {c.small}".strip()) for c in cells)]
            for name, cells in rows
        ),
    ]


def _cell(text: str) -> str:
    """Text that neither Markdown nor HTML takes for anything else."""
    folded = " ".join(text.split())
    return re.sub(r"[&<>|\[\]()`*_\\]", lambda found: f"&#{ord(found[0])};", folded)
