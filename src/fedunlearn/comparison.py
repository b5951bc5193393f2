"""Several methods on the same requests: the same ω⁰, the same schedule, the same accounting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from .experiment import (
    Count,
    Experiment,
    Natural,
    Rate,
    Table,
    check,
    first_problem,
    override,
    parse,
    perform,
)
from .record import read_json, read_metrics, write_json
from .registry import did_you_mean
from .types import FedUnlearnError, Listener

Show = Callable[[str], AbstractContextManager[Listener]]
"""Makes a listener for a run, given what to call it."""


class Grid(Table):
    """Learning rates to choose from, by short trials: one rate serves unlearning and recovery."""

    rates: list[Rate] = Field(min_length=1)
    unlearning_rounds: Count = 20
    recovery_rounds: Natural = 10


@dataclass(frozen=True)
class Comparison:
    """Experiments by column (a request) and row (a method), and the seeds to repeat them with."""

    name: str
    columns: Mapping[str, Mapping[str, Experiment]]
    seeds: tuple[int, ...]
    grid: Grid | None = None
    printed: str = ""
    """The table of the paper that it reproduces."""

    def places(self, folder: Path, column: str) -> dict[str, list[Path]]:
        """The run folders of a column, by row."""
        return {
            row: [_place(folder, column, seed, row) for seed in self.seeds] for row in self.columns[column]
        }


def _place(folder: Path, column: str, seed: int, row: str) -> Path:
    return folder / column / f"seed-{seed}" / row


def read_comparison(
    path: Path,
    overrides: Iterable[str] = (),
    *,
    scale: str | None = None,
    only: Sequence[str] = (),
    seeds: int | None = None,
) -> Comparison:
    """A comparison from a TOML file: an experiment, and what its parts change in it.

    ``[methods.ROW]`` is a row, named like its method unless it names another; ``[columns.NAME]`` is a
    request; ``[scale.NAME]`` is a size of the whole, the first unless named, which a column may state
    otherwise in ``[columns.NAME.scale.NAME]``. A file that ``extends`` another ``show``s some of its rows
    and columns; ``only`` some of these may be wanted.
    """
    values = _extended(path)
    scales, columns, rows = (_tables(path, values, part) for part in ("scale", "columns", "methods"))
    grid, printed, repeated = values.pop("grid", None), values.pop("paper", ""), values.pop("seeds", 1)
    chosen = values.pop("show", {})
    columns, rows = _chosen(path, columns, chosen.get("columns")), _chosen(path, rows, chosen.get("rows"))
    if not rows:
        raise FedUnlearnError(f"{path} compares nothing: add a table [methods.NAME] for each method")
    if scale is not None and scale not in scales:
        raise FedUnlearnError(f"{path} has no scale {scale!r}{did_you_mean(scale, scales)}")
    size = scale or next(iter(scales), "")
    values = {"name": path.stem, **_merged(values, scales.get(size, {}))}
    for text in overrides:
        override(values, text)
    for name in only:
        if name not in rows and name not in columns:
            hint = did_you_mean(name, [*rows, *columns])
            raise FedUnlearnError(f"{path} has no row or column {name!r}{hint}")
    experiments: dict[str, dict[str, Experiment]] = {}
    for column in _wanted(columns or {"": {}}, only):
        changes = dict(columns.get(column, {}))
        sizes = changes.pop("scale", {})
        base = _merged(_merged(values, changes), sizes.get(size, {}))
        experiments[column] = {
            row: check(_merged(base, {"method": row, **rows[row]}), f"{path}, methods.{row}")
            for row in _wanted(rows, only)
        }
    first = next(iter(next(iter(experiments.values())).values())).seed
    return Comparison(
        str(values["name"]),
        experiments,
        tuple(range(first, first + (seeds or int(repeated)))),
        _grid(path, grid),
        str(printed),
    )


def _extended(path: Path) -> dict[str, Any]:
    values = parse(path)
    extends = values.pop("extends", None)
    return values if extends is None else _merged(_extended(path.with_name(str(extends))), values)


def _chosen(path: Path, tables: dict[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
    for name in names or ():
        if name not in tables:
            raise FedUnlearnError(f"{path} shows an unknown {name!r}{did_you_mean(name, tables)}")
    return tables if names is None else {name: tables[name] for name in names}


def carry_out(comparison: Comparison, folder: Path, show: Show, *, workers: int | None = None) -> None:
    """Performs what is missing, goes on with what was cut off, and leaves alone what has ended."""
    for seed in comparison.seeds:
        for column, rows in comparison.columns.items():
            for row, experiment in rows.items():
                chosen = experiment.model_copy(update={"seed": seed})
                if comparison.grid is not None:
                    rate = _tuned(comparison, folder, column, row, show, workers)
                    chosen = _at(chosen, rate)
                _perform(chosen, _place(folder, column, seed, row), folder, show, workers)


def _tuned(
    comparison: Comparison, folder: Path, column: str, row: str, show: Show, workers: int | None
) -> float:
    """The rate whose short trial, on the first seed, ends best by training data alone.

    The rule: accuracy of the retained clients on examples they trained on, less that of the backdoor on the
    targets' own training pictures, at the end of the trial. No test data is looked at.
    """
    assert comparison.grid is not None
    grid, experiment, seed = comparison.grid, comparison.columns[column][row], comparison.seeds[0]
    trials = folder / column / "trials" / row
    if not (trials / "rates.json").exists():
        scores: dict[str, float] = {}
        for rate in grid.rates:
            short = {
                "seed": seed,
                "count_conflicts": False,
                "unlearning": experiment.unlearning.model_copy(update={"rounds": grid.unlearning_rounds}),
                "recovery": experiment.recovery.model_copy(update={"rounds": grid.recovery_rounds}),
            }
            run = trials / f"{rate:g}"
            _perform(_at(experiment.model_copy(update=short), rate), run, folder, show, workers)
            scores[f"{rate:g}"] = _score(run)
        write_json(trials / "rates.json", scores)
    scores = read_json(trials / "rates.json")
    return float(max(scores, key=lambda rate: scores[rate]))


def _score(run: Path) -> float:
    last = [row for row in read_metrics(run) if "r_seen" in row][-1]
    failed = read_json(run / "outcome.json")["status"] not in ("done", "converged")
    return -1.0 if failed else float(last["r_seen"]) - float(last.get("asr", last.get("forget_acc", 0.0)))


def _at(experiment: Experiment, rate: float) -> Experiment:
    return experiment.model_copy(
        update={
            "unlearning": experiment.unlearning.model_copy(update={"lr": rate}),
            "recovery": experiment.recovery.model_copy(update={"lr": rate}),
        }
    )


def _perform(experiment: Experiment, run: Path, folder: Path, show: Show, workers: int | None) -> None:
    if not (run / "outcome.json").exists():
        with show(str(run.relative_to(folder))) as listener:
            perform(experiment, run, [listener], workers=workers)


def _tables(path: Path, values: dict[str, Any], part: str) -> dict[str, dict[str, Any]]:
    tables = values.pop(part, {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise FedUnlearnError(f"{path}: {part} must hold tables, [{part}.NAME]")
    return tables


def _wanted(names: Mapping[str, object], only: Sequence[str]) -> list[str]:
    """The names that are asked for, or all where none of them is."""
    return [name for name in names if name in only] or list(names)


def _grid(path: Path, values: Mapping[str, Any] | None) -> Grid | None:
    if values is None:
        return None
    try:
        return Grid.model_validate(values)
    except ValidationError as error:
        raise FedUnlearnError(f"{path}, grid: {first_problem(error, Grid)}") from None


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The values with the changes, table by table."""
    merged = dict(values)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
