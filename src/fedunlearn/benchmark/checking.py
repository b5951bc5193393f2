"""Stored results, checked: cells are run again, and must end in the same model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..comparison import Comparison, Show, at_rate
from ..core import FedUnlearnError
from ..experiment import Experiment, perform
from ..record import environment, read_json
from .plan import protocol
from .results import Row, read_results

ARITHMETIC = ("torch", "cpu_capability", "system", "byteorder")
"""Parts of an environment on which the bits of a model depend."""


def check_results(
    path: Path, cells: int, folder: Path, show: Show, *, workers: int | None = None
) -> list[str]:
    """Runs some cells of a file of results again, and says of each that it ended in the same model.

    A file with a submitted method lies beside the Python file that it names. Cells are chosen by their
    digests, so that nobody can choose them. Cells from another kind of machine are refused, because its
    arithmetic leads to other bits.
    """
    stored = read_results(path)
    return [
        f"{_name(row)}: the same model, {row['model_sha256'][:12]}"
        for row in repeat(stored, cells, path.parent, folder, show, workers=workers)
    ]


def repeat(
    stored: Mapping[str, Any],
    cells: int,
    beside: Path,
    folder: Path,
    show: Show,
    *,
    workers: int | None = None,
) -> Iterator[Row]:
    """Runs cells again, one after the other; a model with another hash is an error."""
    here = environment()
    runs = sorted((row for row in stored["results"] if "environment" in row), key=lambda row: row["digest"])
    own = [row for row in runs if stored["methods"][row["method"]]["file"]]
    for row in (own or runs)[:cells]:
        there = stored["environments"][row["environment"]]
        if other := [key for key in ARITHMETIC if there.get(key) != here[key]]:
            raise FedUnlearnError(
                f"{_name(row)} was made with {_listed(there, other)}, and here it is {_listed(here, other)}: "
                "check it on a machine of that kind"
            )
        experiment = _experiment(stored, row, beside)
        run = folder / row["request"] / f"seed-{row['seed']}" / row["method"]
        if not (run / "outcome.json").exists():
            with show(_name(row)) as listener:
                perform(experiment, run, [listener], workers=workers)
        found = read_json(run / "outcome.json")["model_sha256"]
        if found != row["model_sha256"]:
            raise FedUnlearnError(
                f"{_name(row)} ended in another model: {found[:12]} instead of {row['model_sha256'][:12]}"
            )
        yield row


def _experiment(stored: Mapping[str, Any], row: Row, beside: Path) -> Experiment:
    file = stored["methods"][row["method"]]["file"]
    wanted: Comparison = protocol([row["method"], row["request"]], beside / file["name"] if file else None)
    experiment = wanted.columns[row["request"]][row["method"]].model_copy(update={"seed": row["seed"]})
    for used in experiment.use:
        if file and used.sha256 != file["sha256"]:
            raise FedUnlearnError(
                f"{used.path.name} is not the file that the results were made with: restore it, or run the "
                "benchmark again"
            )
    return experiment if row["rate"] is None else at_rate(experiment, row["rate"])


def _name(row: Row) -> str:
    return f"{row['request']}/seed-{row['seed']}/{row['method']}"


def _listed(values: Mapping[str, str], keys: Sequence[str]) -> str:
    return ", ".join(str(values.get(key, "?")) for key in keys)
