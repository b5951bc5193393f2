"""The result of a run as a table: ω⁰, after unlearning, after post-training."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table

from ..core import FedUnlearnError, Metrics
from ..record import read_metrics

COLUMNS = {
    "asr": "ASR",
    "forget_acc": "Forget acc",
    "r_acc": "R-Acc",
    "r_acc_std": "std",
    "r_acc_worst": "worst",
    "r_acc_best": "best",
    "target_acc": "Target clean",
    "distance": "Distance",
    "conflicts": "NC",
}
LABELS = {
    "start": "ω⁰",
    "pre-training": "pre-trained",
    "unlearning": "unlearned",
    "post-training": "post-trained",
}
ALWAYS = {"round", "elapsed", "distance"}
UTILITY = {"r_acc", "r_acc_std", "r_acc_worst", "r_acc_best"}
SOMETIMES = {"asr", "forget_acc", "target_acc", "conflicts", "local_trainings", "seconds"}
SOMETIMES |= {"seconds_server", "bytes_up", "bytes_down", "bytes_stored", "lr", "r_seen"}


def measured(folder: Path) -> list[Metrics]:
    """The rows of a run; refused where one is not what a run writes."""
    rows = read_metrics(folder)
    for number, row in enumerate(rows, 1):
        if not _sound(row):
            raise FedUnlearnError(
                f"{folder / 'metrics.jsonl'}, line {number} is not what a run writes: restore it, "
                "or run anew in another folder"
            )
    return rows


def _sound(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and row.get("stage") in LABELS
        and row.keys() >= ALWAYS
        and ("r_acc" not in row or row.keys() >= UTILITY)
        and all(isinstance(row[key], Real) for key in row.keys() & (ALWAYS | UTILITY | SOMETIMES))
        and all(isinstance(value, Real) for key, value in row.items() if key.startswith("r_acc "))
    )


def stages(folder: Path) -> dict[str, Metrics]:
    """The last evaluated row of each stage, in order, by the label that a table gives it."""
    rows = measured(folder)
    last = {str(row["stage"]): row for row in rows if "r_acc" in row}
    return {LABELS[stage]: {**row, **_conflicts(rows, stage)} for stage, row in last.items()}


def _conflicts(rows: list[Metrics], stage: str) -> Metrics:
    """The paper's NC: conflicts averaged over the rounds of a stage."""
    counts = [int(row["conflicts"]) for row in rows if row["stage"] == stage and "conflicts" in row]
    return {"conflicts": fmean(counts)} if counts else {}


def verdict(folder: Path) -> str:
    """What happened, in one sentence of plain words."""
    rows = list(stages(folder).values())
    first, last = rows[0], rows[-1]
    mean, worst = (f"{float(first[key]):.1%} to {float(last[key]):.1%}" for key in ("r_acc", "r_acc_worst"))
    utility = f"retained clients' accuracy went from {mean}, that of the worst from {worst}"
    for key, what in (("asr", "The backdoor works on"), ("forget_acc", "The model is right on")):
        if key in first:
            now, before = float(last[key]), float(first[key])
            return f"{what} {now:.1%} of the forgotten data (before: {before:.1%}); the {utility}."
    return f"The {utility}."


def table(folder: Path) -> list[list[str]]:
    """Header and rows: the stages."""
    rows = stages(folder)
    keys = [key for key in COLUMNS if any(key in row for row in rows.values())]
    body = [[label, *(_number(key, row.get(key)) for key in keys)] for label, row in rows.items()]
    return [["", *(COLUMNS[key] for key in keys)], *body]


def _number(key: str, value: float | str | None) -> str:
    if value is None:
        return "-"
    return f"{float(value):.{2 if key == 'conflicts' else 3}f}"


def shown(lines: Sequence[Sequence[str]]) -> Table:
    """Header and rows for a terminal."""
    header, *body = lines
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for line in body:
        table.add_row(*line)
    return table


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Header and rows in Markdown."""
    header, *body = lines
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *body])
