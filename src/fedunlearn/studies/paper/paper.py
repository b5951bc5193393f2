"""The numbers that the FedOSD paper (Pan et al., AAAI 2025) prints, for comparison with our own."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from ...core import FedUnlearnError, Status
from ...core.registry import did_you_mean
from .results import Result, Results

PARTS = {"cifar100-test": "cifar100"}
"""Datasets that are a part of another and are compared with it."""


@dataclass(frozen=True)
class Printed:
    """One row of one table in one setting; numbers that it does not print are None."""

    table: str
    number: int  # of the table in the paper
    dataset: str
    partition: str
    clients: int
    epochs: int
    model: str
    row: str  # a method's name, or omega0
    stage: int  # 0: before unlearning, 1: after it, 2: after post-training
    asr: float | None = None
    r_acc: float | None = None
    r_acc_std: float | None = None
    r_acc_worst: float | None = None
    r_acc_best: float | None = None
    conflicts: float | None = None
    seconds: float | None = None  # of the clients
    seconds_server: float | None = None
    reverted: bool = False  # the paper's mark r: ASR rose again in post-training


@cache
def _tables() -> dict[str, tuple[Printed, ...]]:
    tables = json.loads(Path(__file__).with_name("paper.json").read_text())
    return {
        table["id"]: tuple(Printed(table["id"], table["number"], **cell) for cell in table["cells"])
        for table in tables
    }


def printed(table: str | None = None) -> tuple[Printed, ...]:
    """The rows of the named table, or of all tables in the paper's order."""
    tables = _tables()
    if table is None:
        return tuple(row for rows in tables.values() for row in rows)
    if table not in tables:
        raise FedUnlearnError(
            f"the paper has no table {table!r}{did_you_mean(table, tables)}", code="unknown"
        )
    return tables[table]


def lookup(
    *, dataset: str, partition: str, row: str, stage: int, clients: int = 10, epochs: int = 1
) -> list[Printed]:
    """Every place where the paper prints this row, in its order."""
    wanted = (dataset, partition, row, stage, clients, epochs)
    return [p for p in printed() if (p.dataset, p.partition, p.row, p.stage, p.clients, p.epochs) == wanted]


MEASURED = tuple(field.name for field in fields(Printed) if field.default is None)


def paper_value(settings: Mapping[str, Any], row: str, stage: int, table: str = "") -> Printed | None:
    """The paper's numbers for the settings of a column, preferably from ``table``, else from the first."""
    data = settings["data"]
    found = lookup(
        dataset=PARTS.get(data["dataset"], data["dataset"]),
        partition=data["partition"],
        row=row,
        stage=stage,
        clients=data["clients"],
        epochs=settings["training"]["epochs"],
    )
    if not found:
        return None
    cells = sorted(found, key=lambda cell: cell.table != table)
    numbers = {key: [n for cell in cells if (n := getattr(cell, key)) is not None] for key in MEASURED}
    return replace(cells[0], **{key: known[0] for key, known in numbers.items() if known})


@cache
def as_results() -> Results:
    """The paper's numbers in the form of finished runs; if two tables differ, the earlier one counts."""
    found: dict[tuple[str, str, int], dict[str, float]] = defaultdict(dict)
    for entry in printed():
        values = {key: value for key in MEASURED if (value := getattr(entry, key)) is not None}
        known = found[_column(entry), entry.row, entry.stage]
        known |= values | known
    runs = [
        Result(
            column=column,
            row=row,
            seed=0,
            rate=0.0,
            status=Status.DONE,
            model_sha256="",
            before=found.get((column, "omega0", 0), {}),
            unlearned=found.get((column, row, 1), {}),
            recovered=found.get((column, row, 2), {}),
            cost=_cost(found.get((column, row, 1), {}) | found.get((column, row, 2), {})),
            course={},
        )
        for column, row in dict.fromkeys((column, row) for column, row, stage in found if stage)
    ]
    return Results("paper", {}, {}, {}, runs)


def _cost(values: dict[str, float]) -> dict[str, float]:
    """Our seconds are totals; the paper prints those of clients and server separately."""
    total = values.get("seconds", 0.0) + values.get("seconds_server", 0.0)
    return values | ({"seconds": total} if "seconds" in values else {})


def _column(entry: Printed) -> str:
    """The name of the column in the protocol."""
    clients = f"-m{entry.clients}" if entry.clients != 10 else ""
    epochs = f"-e{entry.epochs}" if entry.epochs != 1 else ""
    return f"{entry.dataset}-{entry.partition}{clients}{epochs}"
