"""Audits in a comparison: of its runs, of ω⁰ and of the retrainings, where examples are kept for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ...core import FedUnlearnError
from ...core.errors import warn
from ...evidence.verdicts import MARGIN
from ...report import read_evidence
from .. import Experiment, Show, auditing, finished, omega0, recorded, reference_rounds, run_model, standard
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
        used = (home / "omega0" / "evidence.json").exists()
        if used or all(_failed(place(folder, column, seed, row)) for row in rows):
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
    """Audit what has no evidence by this comparison's standard; a run that failed has no model to audit."""

    def named(path: Path) -> str:
        return str(path.relative_to(folder))

    for column, seed, rows in _cells(comparison):
        home = reference_place(folder, column, seed)
        groups: dict[str, list[Path]] = {}
        for row, experiment in rows.items():
            run = place(folder, column, seed, row)
            if _failed(run):
                warn(f"{named(run)} failed, so it is not audited", "not-audited")
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
                raise FedUnlearnError(f"{named(runs[0])}: {error}", code=error.code) from None


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
    """Audit runs that share ω⁰, and with ``references`` also ω⁰ and the retrainings themselves."""
    names = reference_rounds(recorded(runs[0]))
    beside = ("omega0", *(name for name in names if name.startswith("retraining")))
    themselves = {name: home / name for name in beside if references}
    found = {folder: _rests_on(folder) for folder in (*runs, *themselves.values())}
    terms = {"margin": MARGIN if names else None, "relearn": relearn if names else 0}
    agreed = {**{name: found[runs[0]].get(name) for name in names}, **terms}
    if all(each == agreed for each in found.values()):
        return
    wanted = standard(runs[0], relearn=relearn)
    models = wanted.models(lambda name: show(named(home / name)), workers)
    agreed = {**{name: made.sha256 for name, made in models.items()}, **terms}
    start = omega0(runs[0], wanted.setting)
    with auditing(wanted, models, workers) as audited:
        for run in runs:
            if found[run] != agreed:
                audited(run, run_model(run, wanted.setting), omega0(run, wanted.setting))
        for name, folder in themselves.items():
            if found[folder] != agreed:
                audited(folder, {"omega0": start, **models}[name], start)


def _rests_on(folder: Path) -> dict[str, object]:
    """Return what decided the evidence in a folder: SHA-256 of references, margin, rounds of relearning.

    A retraining that is audited is compared with the other one and counts as a reference itself. Retrainings
    that somebody named do not count.
    """
    evidence = read_evidence(folder)
    if evidence is None:
        return {}
    models, relearning = evidence.models, evidence.relearning
    itself = "retrained" in models and "again" not in models
    made = {
        f"{'twin' if role.startswith('twin') else 'retraining'}-{model.get('number')}": model["sha256"]
        for role, model in models.items()
        if model["made"] == "on demand" or (role == "model" and itself)
    }
    return {
        **made,
        "margin": next(iter(evidence.targets.values())).finding.margin,
        "relearn": relearning.posttraining.limit if relearning else 0,
    }


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
