"""Audits in a comparison: of its runs, of ω⁰ and of the retrainings, where examples are kept for them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..core import FedUnlearnError
from ..experiment import (
    Experiment,
    Show,
    auditing,
    finished,
    omega0,
    recorded,
    reference_rounds,
    run_model,
    standard,
)
from .plan import Comparison, place, reference_place

DECIDES_PRETRAINING = {
    "seed",
    "model",
    "data",
    "request",
    "backdoor",
    "training",
    "participation",
    "pretraining",
    "checkpoint",
    "device",
    "precision",
}
"""Runs in which these settings are equal share ω⁰ and the references of an audit."""


def reference_trainings(comparison: Comparison, folder: Path) -> dict[str, tuple[int, int]]:
    """The references that no audit has used yet, by name, with their rounds: of pre-training, and others.

    Columns that differ in the backdoor alone share their retrainings.
    """
    found: dict[str, tuple[int, int]] = {}
    counted: set[tuple[str, str]] = set()
    for column, seed, rows in _cells(comparison):
        home = reference_place(folder, column, seed)
        if all(_failed(place(folder, column, seed, row)) for row in rows) or not _unaudited(home / "omega0"):
            continue
        experiment = next(iter(rows.values()))
        for name, rounds in reference_rounds(experiment).items():
            beside = set() if name.startswith("twin") else {"backdoor"}
            shared = name, experiment.model_dump_json(include=DECIDES_PRETRAINING - beside)
            if shared not in counted:
                counted.add(shared)
                found[str((home / name).relative_to(folder))] = rounds
    return found


def audit_runs(comparison: Comparison, folder: Path, show: Show, *, workers: int | None = None) -> None:
    """Audits what has no ``evidence.json`` yet; a run that failed has no model to audit."""

    def named(path: Path) -> str:
        return str(path.relative_to(folder))

    for column, seed, rows in _cells(comparison):
        home = reference_place(folder, column, seed)
        groups: dict[str, list[Path]] = {}
        for row, experiment in rows.items():
            run = place(folder, column, seed, row)
            if _failed(run):
                warnings.warn(f"{named(run)} failed, so it is not audited", stacklevel=2)
            else:
                groups.setdefault(experiment.model_dump_json(include=DECIDES_PRETRAINING), []).append(run)
        for number, runs in enumerate(groups.values()):
            try:
                # The table shows one ω⁰ and one pair of retrainings: those of the first row.
                _audit(
                    runs,
                    home,
                    show,
                    named,
                    references=number == 0,
                    relearn=comparison.relearn,
                    workers=workers,
                )
            except FedUnlearnError as error:
                raise FedUnlearnError(f"{named(runs[0])}: {error}") from None


def _audit(
    runs: Sequence[Path],
    home: Path,
    show: Show,
    named: Callable[[Path], str],
    *,
    references: bool,
    relearn: int,
    workers: int | None,
) -> None:
    """Audits runs that share ω⁰, and with ``references`` also ω⁰ and the retrainings themselves."""
    experiment = recorded(runs[0])
    retrainings = [name for name in reference_rounds(experiment) if name.startswith("retraining")]
    themselves = [name for name in ("omega0", *retrainings) if references and _unaudited(home / name)]
    others = [run for run in runs if _unaudited(run)]
    if not themselves and not others:
        return
    wanted = standard(runs[0], relearn=relearn)
    models = wanted.models(lambda name: show(named(home / name)), workers)
    start = omega0(runs[0], wanted.setting)
    with auditing(wanted, models, workers) as audited:
        for run in others:
            audited(run, run_model(run, wanted.setting), omega0(run, wanted.setting))
        for name in themselves:
            audited(home / name, {"omega0": start, **models}[name], start)


def _cells(comparison: Comparison) -> Iterator[tuple[str, int, dict[str, Experiment]]]:
    """Columns and seeds, with the rows that keep examples aside for an audit."""
    for seed in comparison.seeds:
        for column, rows in comparison.columns.items():
            kept = {
                row: experiment.model_copy(update={"seed": seed})
                for row, experiment in rows.items()
                if experiment.data.audit
            }
            if kept:
                yield column, seed, kept


def _failed(run: Path) -> bool:
    return (run / "outcome.json").exists() and not finished(run)


def _unaudited(folder: Path) -> bool:
    return not (folder / "evidence.json").exists()
