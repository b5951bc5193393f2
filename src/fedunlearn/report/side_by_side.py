"""Our numbers beside the paper's: ours, the paper's and the difference, in each of its tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from .comparison import markdown
from .paper import Printed, lookup, printed
from .results import Result, Results

MEASURES = {
    "asr": "ASR",
    "r_acc": "R-Acc",
    "r_acc_std": "std",
    "r_acc_worst": "worst",
    "r_acc_best": "best",
    "conflicts": "NC",
    "seconds": "s clients",
    "seconds_server": "s server",
}
NEAR = 0.05
"""How far an accuracy may lie from the paper's to count as near."""

START = "omega0"
PARTS = {"cifar100-test": "cifar100"}
"""Data sets that stand in for another, of which they are a part."""


@dataclass(frozen=True)
class Cell:
    """One number of one row in one column, of each seed, and what the paper prints there."""

    column: str
    row: str
    stage: int
    measure: str
    ours: tuple[float, ...]
    paper: float | None

    @property
    def mean(self) -> float:
        return fmean(self.ours)

    @property
    def difference(self) -> float | None:
        return None if self.paper is None else self.mean - self.paper


def side_by_side(results: Results, columns: Sequence[str], rows: Sequence[str], table: str) -> list[Cell]:
    """Every number of a table that was run, in the order of the paper's rows.

    A table that the paper does not print takes its numbers from the others, where they have any.
    """
    measures = _measures(table)
    cells = []
    for column in columns:
        runs = {row: found for row in rows if (found := results.of(column, row))}
        for row, stage, of in _ordered(runs):
            paper = _paper(results.settings[column], row, stage, table)
            for measure in measures:
                ours = [value for run in of if (value := _value(run, stage, measure)) is not None]
                if ours:
                    theirs = None if paper is None else getattr(paper, measure)
                    cells.append(Cell(column, row, stage, measure, tuple(ours), theirs))
    return cells


def _measures(table: str) -> Sequence[str]:
    if not table:
        return ("asr", "r_acc", "r_acc_worst", "r_acc_best")
    return [key for key in MEASURES if any(getattr(cell, key) is not None for cell in printed(table))]


def _ordered(runs: Mapping[str, Sequence[Result]]) -> Iterable[tuple[str, int, Sequence[Result]]]:
    """ω⁰, methods of one stage, then the others after unlearning, then after post-training."""
    if not runs:
        return
    yield START, 0, next(iter(runs.values()))
    single = [row for row, found in runs.items() if not any(run.unlearned for run in found)]
    yield from ((row, 2, runs[row]) for row in single)
    for stage in (1, 2):
        yield from ((row, stage, found) for row, found in runs.items() if row not in single)


def _paper(settings: Mapping[str, Any], row: str, stage: int, table: str) -> Printed | None:
    data = settings["data"]
    found = lookup(
        dataset=PARTS.get(data["dataset"], data["dataset"]),
        partition=data["partition"],
        row=row,
        stage=stage,
        clients=data["clients"],
        epochs=settings["training"]["epochs"],
    )
    return next((cell for cell in found if cell.table == table), next(iter(found), None))


def _value(run: Result, stage: int, measure: str) -> float | None:
    if measure == "conflicts":
        return run.cost.get(measure) if stage == 1 else None
    if measure.startswith("seconds"):
        both = run.cost if stage == 2 else {}
        return both[measure] - (both["seconds_server"] if measure == "seconds" else 0) if both else None
    return run.stage(stage).get(measure)


def grid(cells: Sequence[Cell], column: str) -> list[list[str]]:
    """Header and lines of one column, for a terminal or Markdown."""
    of = {(cell.row, cell.stage, cell.measure): cell for cell in cells if cell.column == column}
    measures = [measure for measure in MEASURES if any(key[2] == measure for key in of)]
    header = ["", *(text for measure in measures for text in (MEASURES[measure], "paper", "Δ"))]
    lines = []
    for row, stage in dict.fromkeys(key[:2] for key in of):
        texts = [_texts(of.get((row, stage, measure))) for measure in measures]
        lines.append([name(row, stage, cells), *(text for triple in texts for text in triple)])
    return [header, *lines]


def name(row: str, stage: int, cells: Sequence[Cell]) -> str:
    """A row as tables call it: ¹ and ² where it has both stages."""
    if row == START:
        return "ω⁰"
    both = any(cell.row == row and cell.stage == 1 for cell in cells)
    return row + ("", "¹", "²")[stage] if both else row


def _texts(cell: Cell | None) -> tuple[str, str, str]:
    if cell is None:
        return "–", "–", "–"
    spread = f" ±{number(stdev(cell.ours), cell.measure)}" if len(cell.ours) > 1 else ""
    paper = "–" if cell.paper is None else number(cell.paper, cell.measure)
    apart = "–" if cell.difference is None else number(cell.difference, cell.measure, signed=True)
    return number(cell.mean, cell.measure) + spread, paper, apart


def number(value: float, measure: str, *, signed: bool = False) -> str:
    """As the paper writes it: .851 for a share, two digits for conflicts, whole seconds."""
    digits = {"conflicts": 2, "seconds": 0, "seconds_server": 1}.get(measure, 3)
    text = f"{abs(value):.{digits}f}"
    if _accuracy(measure):
        text = text.removeprefix("0")
    minus = "−" if value < 0 and float(text) else ""
    return f"{minus or ('+' if signed else '')}{text}"


def as_csv(cells: Iterable[Cell]) -> str:
    """One number on a line."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["column", "row", "stage", "measure", "seeds", "ours", "deviation", "paper", "difference"])
    for cell in cells:
        known = cell.difference is not None
        lines.writerow(
            [
                cell.column,
                cell.row,
                cell.stage,
                cell.measure,
                len(cell.ours),
                f"{cell.mean:.5f}",
                f"{stdev(cell.ours):.5f}" if len(cell.ours) > 1 else "",
                cell.paper if known else "",
                f"{cell.difference:.5f}" if known else "",
            ]
        )
    return text.getvalue()


def as_latex(cells: Sequence[Cell], caption: str) -> str:
    r"""The paper's layout: a line for each method, its numbers in groups by column, for ``booktabs``.

    The paper's number follows ours in brackets.
    """
    of = {(cell.column, cell.row, cell.stage, cell.measure): cell for cell in cells}
    columns = list(dict.fromkeys(cell.column for cell in cells))
    shown = {
        column: [measure for measure in MEASURES if any(k[0] == column and k[3] == measure for k in of)]
        for column in columns
    }
    places = [(column, measure) for column in columns for measure in shown[column]]
    heads = [rf"\multicolumn{{{len(shown[column])}}}{{c}}{{{column}}}" for column in columns]
    lines = [
        r"\begin{tabular}{l" + "r" * len(places) + "}",
        r"\toprule",
        " & ".join(["", *heads]) + r" \\",
        " & ".join(["Method", *(MEASURES[measure] for _, measure in places)]) + r" \\",
        r"\midrule",
    ]
    for row, stage in dict.fromkeys((cell.row, cell.stage) for cell in cells):
        title = name(row, stage, cells).replace("ω⁰", r"$\omega^0$").replace("¹", "$^1$").replace("²", "$^2$")
        numbers = [_latex(of.get((column, row, stage, measure))) for column, measure in places]
        lines.append(" & ".join([title, *numbers]) + r" \\")
    return "\n".join([f"% {caption}", *lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex(cell: Cell | None) -> str:
    if cell is None:
        return "--"
    ours, paper, _ = _texts(cell)
    ours = ours.replace(" ±", r"$\pm$").replace("−", "$-$")
    return ours if cell.paper is None else rf"{ours} ({paper})"


def counted(cells: Iterable[Cell]) -> str:
    """How many numbers there are, and how many accuracies are near those that the paper prints."""
    cells = list(cells)
    accuracies = [cell.difference for cell in cells if _accuracy(cell.measure)]
    beside = [abs(difference) for difference in accuracies if difference is not None]
    near = sum(apart <= NEAR for apart in beside)
    return (
        f"{len(cells)} numbers; the paper prints {len(beside)} of the accuracies among them, "
        f"and {near} of ours are within ±{NEAR:.2f} of its."
    )


def _accuracy(measure: str) -> bool:
    return measure == "asr" or measure.startswith("r_acc")


def setup(settings: Mapping[str, Any]) -> str:
    """How a column was run, in one line."""
    data, pretraining = settings["data"], settings["pretraining"]
    part = "" if data["fraction"] == 1 else f" ({data['fraction']:.0%} of the examples)"
    epochs = settings["training"]["epochs"]
    return (
        f"{data['dataset']}{part}, {data['partition']}, {data['clients']} clients, {settings['model']}, "
        f"{'one local epoch' if epochs == 1 else f'{epochs} local epochs'} in batches of "
        f"{settings['training']['batch_size']}, {pretraining['rounds']} rounds of pre-training, "
        f"{settings['unlearning']} + {settings['recovery']} rounds after the request"
    )


def meaning(cells: Sequence[Cell]) -> str:
    """What a table's numbers are."""
    most = max((len(cell.ours) for cell in cells), default=0)
    seeds = "one seed, so there is no ±" if most == 1 else f"up to {most} seeds"
    return (
        f"Ours is the mean ± standard deviation (of a sample, n − 1) over {seeds}; Δ is ours less the "
        "paper's. ¹ is the end of unlearning, ² the end of post-training; std is the deviation over clients "
        "(of a population)."
    )


def as_markdown(cells: Sequence[Cell], results: Results) -> str:
    """A table for each column, with how it was run, and what the numbers are."""
    columns = dict.fromkeys(cell.column for cell in cells)
    parts = [
        f"**{column}**, scale {results.scale}: {setup(results.settings[column])}.\n\n"
        + markdown(grid(cells, column))
        for column in columns
    ]
    return "\n\n".join([*parts, f"{meaning(cells)} {counted(cells)}"]) + "\n"
