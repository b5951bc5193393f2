"""Several methods on one request: the same ω⁰, the same schedule, the same accounting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .experiment import Experiment, check, override, parse, perform
from .registry import did_you_mean
from .types import FedUnlearnError, Listener


@dataclass(frozen=True)
class Comparison:
    """Experiments that differ in their method, by the name of their row, and the seeds of all."""

    name: str
    rows: Mapping[str, Experiment]
    seeds: tuple[int, ...]

    def runs(self, folder: Path) -> list[tuple[Path, Experiment]]:
        """Each experiment with its folder: all methods of one seed, then those of the next."""
        return [
            (place(folder, seed, row), experiment.model_copy(update={"seed": seed}))
            for seed in self.seeds
            for row, experiment in self.rows.items()
        ]


def place(folder: Path, seed: int, row: str) -> Path:
    """Where a comparison keeps one run."""
    return folder / f"seed-{seed}" / row


def read_comparison(
    path: Path, overrides: Iterable[str] = (), *, only: Sequence[str] = (), seeds: int = 1
) -> Comparison:
    """A comparison from a TOML file: an experiment, and under ``methods`` what each row changes in it.

    A row is named like its method, unless it names another; ``only`` some rows may be wanted.
    """
    values = parse(path)
    for text in overrides:
        override(values, text)
    rows = values.pop("methods", None)
    if not isinstance(rows, dict) or not rows:
        raise FedUnlearnError(f"{path} compares nothing: add a table [methods.NAME] for each method")
    for row in only:
        if row not in rows:
            raise FedUnlearnError(f"{path} has no row {row!r}{did_you_mean(row, rows)}")
    chosen = [row for row in rows if not only or row in only]
    experiments = {
        row: check(
            {"name": path.stem, **_merged(values, {"method": row, **rows[row]})}, f"{path}, methods.{row}"
        )
        for row in chosen
    }
    first = next(iter(experiments.values())).seed
    return Comparison(str(values.get("name", path.stem)), experiments, tuple(range(first, first + seeds)))


def carry_out(
    comparison: Comparison,
    folder: Path,
    show: Callable[[str], AbstractContextManager[Listener]],
    *,
    workers: int | None = None,
) -> None:
    """Performs what is missing, goes on with what was cut off, and leaves alone what has ended.

    ``show`` makes a listener for a run, given its place in the comparison.
    """
    runs = comparison.runs(folder)
    for number, (run, experiment) in enumerate(runs, 1):
        if not (run / "outcome.json").exists():
            where = f"{run.relative_to(folder)} ({number}/{len(runs)})"
            with show(where) as listener:
                perform(experiment, run, [listener], workers=workers)


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The values with the changes, table by table."""
    merged = dict(values)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
