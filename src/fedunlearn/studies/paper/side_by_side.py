"""Our numbers next to the paper's, with the difference, in each of its tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from ...measures.metrics import metric
from ...report.tables import markdown
from .paper import paper_value, printed
from .results import Result, Results

MEASURES = (
    *("asr", "r_acc", "r_acc_std", "r_acc_worst", "r_acc_best", "conflicts"),
    *("seconds", "seconds_server"),
)
"""The keys of the numbers that the paper prints; its seconds are those of the clients alone."""
NEAR = 0.05
"""The largest difference from the paper at which an accuracy counts as near."""

START = "omega0"


@dataclass(frozen=True)
class Cell:
    """One number of one row in one column, for each seed, and the paper's number."""

    column: str
    row: str
    stage: int
    measure: str
    ours: tuple[float, ...]
    paper: float | None
    rate: float
    failed: int = 0
    """The number of seeds that failed; each counts with its last number."""
    stops: tuple[float, ...] = ()
    """The rounds after which seeds stopped unlearning early."""
    reverted: bool = False
    """Whether the paper marks its number: ASR rose again in post-training."""

    @property
    def mean(self) -> float:
        return fmean(self.ours)

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's; None for seconds, which depend on the machine."""
        return None if self.paper is None or self.measure.startswith("seconds") else self.mean - self.paper


def side_by_side(results: Results, columns: Sequence[str], rows: Sequence[str], table: str) -> list[Cell]:
    """Every number of a table that was run, in the order of the paper's rows.

    A table that the paper does not print takes the paper's numbers from its other tables.
    """
    measures = _measures(table)
    cells = []
    for column in columns:
        runs = {row: found for row in rows if (found := results.of(column, row))}
        for row, stage, seeds in _ordered(runs):
            paper = paper_value(results.settings[column], row, stage, table)
            for measure in measures:
                ours = [(run, value) for run in seeds if (value := _value(run, stage, measure)) is not None]
                if ours:
                    theirs = None if paper is None else getattr(paper, measure)
                    failed = sum(run.failed for run, _ in ours) if stage else 0
                    values = tuple(value for _, value in ours)
                    stops = tuple(sorted(run.turn for run, _ in ours if run.stopped)) if stage else ()
                    reverted = measure == "asr" and paper is not None and paper.reverted
                    cells.append(
                        Cell(
                            column,
                            row,
                            stage,
                            measure,
                            values,
                            theirs,
                            seeds[0].rate,
                            failed,
                            stops,
                            reverted,
                        )
                    )
    return cells


def _measures(table: str) -> Sequence[str]:
    if not table:
        return ("asr", "r_acc", "r_acc_worst", "r_acc_best")
    return [key for key in MEASURES if any(getattr(cell, key) is not None for cell in printed(table))]


def _ordered(runs: Mapping[str, Sequence[Result]]) -> Iterable[tuple[str, int, Sequence[Result]]]:
    """ω⁰, methods with one stage, then the others after unlearning, then after post-training."""
    if not runs:
        return
    # Use the row with the most seeds for ω⁰.
    yield START, 0, max(runs.values(), key=len)
    single = [row for row, found in runs.items() if not any(run.unlearned for run in found)]
    yield from ((row, 2, runs[row]) for row in single)
    for stage in (1, 2):
        yield from ((row, stage, found) for row, found in runs.items() if row not in single)


def _value(run: Result, stage: int, measure: str) -> float | None:
    if measure == "conflicts":
        return run.cost.get(measure) if stage == 1 else None
    if measure.startswith("seconds"):
        both = run.cost if stage == 2 else {}
        return both[measure] - (both["seconds_server"] if measure == "seconds" else 0) if both else None
    return run.stage(stage).get(measure)


def grid(cells: Sequence[Cell], column: str) -> list[list[str]]:
    """Header and lines of one column, for a terminal or Markdown."""
    by_place = {(cell.row, cell.stage, cell.measure): cell for cell in cells if cell.column == column}
    measures = [measure for measure in MEASURES if any(key[2] == measure for key in by_place)]
    header = ["", *(text for measure in measures for text in (title(measure), "paper", "Δ")), "η"]
    lines = []
    for row, stage in dict.fromkeys(key[:2] for key in by_place):
        triples = [texts(by_place.get((row, stage, measure))) for measure in measures]
        rate = next(cell.rate for key, cell in by_place.items() if key[:2] == (row, stage))
        shown = [text for triple in triples for text in triple]
        lines.append([name(row, stage, cells), *shown, f"{rate:g}" if stage else "–"])
    return [header, *lines]


def title(measure: str) -> str:
    """The name of a measure in tables."""
    return "Client seconds" if measure == "seconds" else metric(measure).title


def name(row: str, stage: int, cells: Sequence[Cell]) -> str:
    """The name of a row in tables, marked ¹ or ² if it has both stages."""
    if row == START:
        return "ω⁰"
    both = any(cell.row == row and cell.stage == 1 for cell in cells)
    return row + ("", "¹", "²")[stage] if both else row


def texts(cell: Cell | None) -> tuple[str, str, str]:
    """Ours, the paper's and the difference."""
    if cell is None:
        return "–", "–", "–"
    spread = f" ±{number(stdev(cell.ours), cell.measure)}" if len(cell.ours) > 1 else ""
    paper = "–" if cell.paper is None else number(cell.paper, cell.measure)
    apart = "–" if cell.difference is None else number(cell.difference, cell.measure, signed=True)
    return number(cell.mean, cell.measure) + spread + (" †" if cell.failed else ""), paper, apart


def number(value: float, measure: str, *, signed: bool = False) -> str:
    """A number in the paper's format: .851 for a share, two digits for conflicts, whole seconds."""
    share = metric(measure).unit == "share"
    text = f"{abs(value):.{3 if share else metric(measure).digits}f}"
    if share:
        text = text.removeprefix("0")
    minus = "−" if value < 0 and float(text) else ""
    return f"{minus or ('+' if signed else '')}{text}"


def meaning(cells: Sequence[Cell]) -> str:
    """Explains the numbers of a table."""
    sentences = (
        averaged(cells),
        "Δ is ours minus the paper's, before rounding."
        if any(cell.difference is not None for cell in cells)
        else "",
        staged(cells),
        "std is the population standard deviation over clients." if has_deviation(cells) else "",
        "η is the learning rate of the first round, chosen by trials unless the method fixes it.",
        failures(cells),
        stops(cells),
    )
    return " ".join(filter(None, sentences))


def has_deviation(cells: Sequence[Cell]) -> bool:
    """Whether a table shows the deviation over clients."""
    return any(cell.measure == "r_acc_std" for cell in cells)


def staged(cells: Sequence[Cell]) -> str:
    """Explains ¹ and ², if the table uses them."""
    return (
        "¹ is the end of unlearning, ² the end of post-training." if any(c.stage == 1 for c in cells) else ""
    )


def averaged(cells: Sequence[Cell]) -> str:
    """The number of seeds behind our numbers."""
    seeds: dict[str, dict[str, int]] = {}
    for cell in cells:
        rows = seeds.setdefault(cell.column, {})
        rows[cell.row] = max(rows.get(cell.row, 0), len(cell.ours))
    whole = {column: max(rows.values()) for column, rows in seeds.items()}
    most = max(whole.values(), default=0)
    if most < 2:
        return "Our numbers are from one seed."
    fewer = [f"{column} ({count})" for column, count in whole.items() if count < most]
    fewer += [
        f"{row} in {column} ({count})"
        for column, rows in seeds.items()
        for row, count in rows.items()
        if count < whole[column]
    ]
    return (
        f"Our numbers are means ± sample standard deviations (n − 1) over {most} seeds"
        + (f", or over fewer: {', '.join(fewer)}" if fewer else "")
        + "."
    )


def failures(cells: Sequence[Cell]) -> str:
    """Explains †, if the table uses it."""
    failed: dict[str, tuple[int, int]] = {}
    for cell in cells:
        where = f"{cell.row} in {cell.column}"
        if cell.failed:
            failed[where] = max(failed.get(where, (0, 0)), (cell.failed, len(cell.ours)))
    text = ", ".join(f"{where} ({count} of {seeds})" for where, (count, seeds) in failed.items())
    return f"† Failed runs, counted with their last numbers: {text}." if text else ""


def stops(cells: Sequence[Cell]) -> str:
    """Names the runs whose unlearning stopped early, if any."""
    early = {f"{cell.row} in {cell.column}": cell for cell in cells if cell.stops}
    text = ", ".join(
        f"{where} ({len(cell.stops)} of {len(cell.ours)}, after {_span(cell.stops)})"
        for where, cell in early.items()
    )
    return f"Unlearning stopped early: {text}." if text else ""


def _span(rounds: Sequence[float]) -> str:
    first, last = (f"{end(rounds):g}" for end in (min, max))
    return first if first == last else f"{first} to {last}"


def counted(cells: Iterable[Cell]) -> str:
    """The number of numbers, and of accuracies near those that the paper prints."""
    cells = list(cells)
    differences = {
        title(key): [
            abs(cell.difference) for cell in cells if cell.measure == key and cell.difference is not None
        ]
        for key in MEASURES
        if metric(key).unit == "share" and key != "r_acc_std"
    }
    near = {
        name: (sum(round(gap, 9) <= NEAR for gap in gaps), len(gaps))
        for name, gaps in differences.items()
        if gaps
    }
    if not near:
        return f"{len(cells)} numbers; the paper prints no accuracy for them."
    close, compared = (sum(pair) for pair in zip(*near.values(), strict=True))
    return (
        f"{len(cells)} numbers; the paper prints {compared} of the accuracies among them, "
        f"and {close} of ours are within ±{NEAR:.2f} of the paper's: "
        + ", ".join(f"{name} {count} of {total}" for name, (count, total) in near.items())
        + "."
    )


def setup(settings: Mapping[str, Any]) -> str:
    """The settings of a column, in one line."""
    data = settings["data"]
    what = (data["dataset"], data["partition"], f"{data['clients']} clients", settings["model"])
    return f"{', '.join(what)}, {size(settings)}"


def size(settings: Mapping[str, Any]) -> str:
    """The share of the data and the number of rounds."""
    fraction, epochs = settings["data"]["fraction"], settings["training"]["epochs"]
    return (
        f"{'all' if fraction == 1 else f'{100 * fraction:g} %'} of the examples, "
        f"{'one local epoch' if epochs == 1 else f'{epochs} local epochs'} in batches of "
        f"{settings['training']['batch_size']}, {settings['pretraining']['rounds']} rounds of pre-training, "
        f"{settings['unlearning']} + {settings['recovery']} rounds after the request"
    )


def as_markdown(cells: Sequence[Cell], results: Results) -> str:
    """A table for each column with its settings, and an explanation of the numbers."""
    columns = dict.fromkeys(cell.column for cell in cells)
    parts = [
        f"**{column}**, scale {results.scale}: {setup(results.settings[column])}.\n\n"
        + markdown(grid(cells, column))
        for column in columns
    ]
    return "\n\n".join([*parts, f"{meaning(cells)} {counted(cells)}"]) + "\n"


def as_csv(cells: Iterable[Cell], scale: str) -> str:
    """One line per number."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(
        [
            "scale",
            "column",
            "row",
            "stage",
            "measure",
            "rate",
            "seeds",
            "failed",
            "ours",
            "deviation",
            "paper",
            "difference",
        ]
    )
    for cell in cells:
        lines.writerow(
            [
                scale,
                cell.column,
                cell.row,
                cell.stage,
                cell.measure,
                f"{cell.rate:g}" if cell.stage else "",
                len(cell.ours),
                cell.failed,
                f"{cell.mean:.5f}",
                f"{stdev(cell.ours):.5f}" if len(cell.ours) > 1 else "",
                "" if cell.paper is None else cell.paper,
                "" if cell.difference is None else f"{cell.difference:.5f}",
            ]
        )
    return text.getvalue()
