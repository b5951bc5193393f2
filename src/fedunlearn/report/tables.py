"""The result of a run as a table: ω⁰, after unlearning, after post-training."""

from __future__ import annotations

from numbers import Real
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table

from ..record import read_metrics
from ..types import FedUnlearnError, Metrics

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


def table(folder: Path) -> Table:
    """The stages for a terminal."""
    header, *lines = _cells(folder)
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column(no_wrap=True)
    for name in header[1:]:
        shown.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        shown.add_row(*line)
    return shown


def markdown(folder: Path) -> str:
    """The stages as a Markdown table."""
    header, *lines = _cells(folder)
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *lines])


def _cells(folder: Path) -> list[list[str]]:
    rows = stages(folder)
    keys = [key for key in COLUMNS if any(key in row for row in rows.values())]
    body = [[label, *(_number(key, row.get(key)) for key in keys)] for label, row in rows.items()]
    return [["", *(COLUMNS[key] for key in keys)], *body]


def _number(key: str, value: float | str | None) -> str:
    if value is None:
        return "-"
    return f"{float(value):.{2 if key == 'conflicts' else 3}f}"
