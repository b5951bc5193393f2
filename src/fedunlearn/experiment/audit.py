"""An audit of a finished run: its clients are rebuilt and compare its model with that of a retraining."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..auditing import Evidence, audit
from ..core import FedUnlearnError, Stage, State
from ..record import model_hash, read_state, write_json
from ..running import finished
from .checkpoint import read_model
from .run import recorded
from .settings import Experiment, UserFile
from .setup import Setting, prepare

SHARED = ("seed", "model", "data", "request", "backdoor", "training")
"""Settings that decide who holds which data, and how clients train: equal in all runs of an audit."""


def audit_run(
    folder: Path, against: Path | None = None, *, again: Path | None = None, workers: int | None = None
) -> Evidence:
    """Audits the model of a run folder and writes ``evidence.json`` into it.

    ``against`` is the folder of a retraining with the same data, ``again`` that of a second one. Without the
    first there is no verdict.
    """
    experiment = _experiment(folder)
    others = {"retrained": against, "again": again}
    folders = {name: other for name, other in others.items() if other is not None}
    notes = [note for other in folders.values() for note in _checked(experiment, folder, other)]
    setting = prepare(experiment)
    states = {name: _model(other, setting) for name, other in folders.items()}
    model, (original, _) = _model(folder, setting), read_state(folder / "omega0.safetensors")
    clients, targets = setting.population.auditing, setting.population.targets
    with setting.federation(clients, workers, Stage.UNLEARNING) as federation:
        found = audit(
            federation,
            model,
            targets=targets,
            retrained=states.get("retrained"),
            original=original,
            again=states.get("again"),
            clients=clients,
            notes=notes,
        )
    hashes = {"model": model, "original": original, **states}
    write_json(
        folder / "evidence.json",
        {**found.as_dict(), "models": {name: model_hash(state) for name, state in hashes.items()}},
    )
    return found


def _experiment(folder: Path) -> Experiment:
    experiment = recorded(folder)
    if not finished(folder):
        raise FedUnlearnError(
            f"the run in {folder} has not ended, so there is no model to audit: finish it with "
            f"fedunlearn resume {folder}"
        )
    return experiment


def _model(folder: Path, setting: Setting) -> State:
    return read_model(UserFile(path=folder / "model.safetensors"), setting.build(0))


def _checked(experiment: Experiment, folder: Path, other: Path) -> list[str]:
    """What limits a retraining as the standard of a run; refused where it cannot be one."""
    retraining = _experiment(other)
    if retraining.method != "retrain":
        raise FedUnlearnError(
            f"{other} is a run of {retraining.method}, and only a retraining is a standard: "
            "name a run with method=retrain"
        )
    for name in SHARED:
        ours, theirs = _shared(experiment, name), _shared(retraining, name)
        if ours != theirs:
            raise FedUnlearnError(
                f"{folder} and {other} differ in {name} ({_difference(ours, theirs)}): retrain with the same"
            )
    notes = []
    rounds, budget = sum(phase.rounds for phase in retraining.phases()), experiment.pretraining.rounds
    if experiment.checkpoint is not None:
        notes.append("How long ω⁰ was trained is not known: retraining must have had the same rounds.")
    elif rounds != budget:
        notes.append(
            f"Retraining had {rounds:,} rounds and ω⁰ had {budget:,}, so the comparison is also one of "
            f"budgets: retrain with options.rounds={budget}."
        )
    for name, ours, theirs in (
        ("pretraining.lr", experiment.pretraining.lr, retraining.pretraining.lr),
        ("participation", experiment.participation, retraining.participation),
    ):
        if ours != theirs:
            notes.append(f"Retraining had another {name} than ω⁰, so the comparison is also one of these.")
    return notes


def _shared(experiment: Experiment, name: str) -> Any:
    value = getattr(experiment, name)
    return value.model_dump(exclude={"directory"}) if hasattr(value, "model_dump") else value


def _difference(ours: Any, theirs: Any) -> str:
    if isinstance(ours, dict):
        key = next(key for key in ours if ours[key] != theirs[key])
        return f"{key}: {_difference(ours[key], theirs[key])}"
    return f"{ours!r} and {theirs!r}"
