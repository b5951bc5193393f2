"""Audits of finished runs: their clients are rebuilt and compare a model with that of a retraining."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, TypeAlias

from ..auditing import audit
from ..client.audit import compared_sets
from ..client.relearning import taught
from ..config.tables import UserFile
from ..core import FedUnlearnError, Stage, State
from ..core.errors import require, require_count
from ..core.seeds import derive
from ..evidence import Curves, Evidence, Relearning
from ..evidence.verdicts import MARGIN
from ..relearning import EXAMPLES, relearn
from ..runs import (
    RECOVERY_HINT,
    claim,
    earlier,
    json_bytes,
    locked,
    model_hash,
    read_metrics,
    read_outcome,
    read_state,
    require_listed,
)
from ..runs.running import finished
from .references import Show, number_of_twins, references, unseen
from .run import recorded
from .settings import Experiment
from .setup import Setting, prepare
from .start_model import read_model
from .training import CachedTraining

SHARED = ("seed", "model", "data", "request", "backdoor", "training")
"""Settings that decide who holds which data, and how clients train: equal in all runs of an audit."""

RETRAININGS = ("retrain", "fast-retrain")
"""Methods that train a new model from the retained clients alone: their models can be a standard."""


@dataclass(frozen=True)
class Made:
    """A model, and how it was made."""

    state: State
    how: Mapping[str, Any]

    @property
    def sha256(self) -> str:
        return model_hash(self.state)


Audit: TypeAlias = Callable[[Path, Made, Made], Evidence]
"""Audits a model beside its ω⁰ and writes ``evidence.json`` into a folder."""


@dataclass(frozen=True)
class Standard:
    """The models that those of one experiment are compared with."""

    setting: Setting
    retrained: Mapping[str, Path]
    """Folders of retrainings: ``retraining-1``, ``retraining-2``."""
    trainings: Mapping[str, CachedTraining]
    """References that are made on demand, by name."""
    notes: tuple[str, ...] = ()
    margin: float = MARGIN
    relearn: int = 0
    """Rounds of relearning to try."""

    @property
    def missing(self) -> dict[str, tuple[int, int]]:
        """The references that are not made yet, with their rounds of pre-training and of retraining."""
        found = {name: training.phase for name, training in self.trainings.items() if not training.kept}
        return {
            name: (phase.rounds, 0) if phase.stage is Stage.PRETRAINING else (0, phase.rounds)
            for name, phase in found.items()
        }

    def models(self, show: Show, workers: int | None) -> dict[str, Made]:
        """All references by name: read, or trained now."""
        found = {name: run_model(folder, self.setting) for name, folder in self.retrained.items()}
        for name, training in self.trainings.items():
            _, number = name.split("-")
            how = {"made": "on demand", "rounds": training.phase.rounds, "number": int(number)}
            try:
                if training.kept:
                    state = training.model()
                else:
                    with show(name) as listener:
                        state = training.model([listener], workers=workers)
            except FedUnlearnError as error:
                raise FedUnlearnError(f"{name}: {error}", code=error.code) from None
            found[name] = Made(state, how)
        return found


def audit_run(
    folder: Path,
    against: Path | None = None,
    *,
    again: Path | None = None,
    twins: int | None = None,
    margin: float = MARGIN,
    relearn: int = 0,
    show: Show = unseen,
    workers: int | None = None,
) -> Evidence:
    """Audit the model of a run folder and write ``evidence.json`` into it.

    ``against`` is the folder of a retraining with the same data, ``again`` that of a second one. Without
    ``against``, both are trained as long as ω⁰ was, unless they are in the cache; so are ``twins``, two where
    ``data.twins`` has set examples aside for them. ``margin`` is the largest difference of AUC that counts as
    equivalent. ``relearn`` is how many rounds of relearning are tried. ``show`` makes the listener of each
    such training.
    """
    wanted = standard(folder, against, again=again, twins=twins, margin=margin, relearn=relearn)
    return audit_with(wanted, folder, show, workers=workers)


def audit_with(
    wanted: Standard, folder: Path, show: Show = unseen, *, workers: int | None = None
) -> Evidence:
    """Audit the model of a run folder by a standard that was made for it."""
    with auditing(wanted, wanted.models(show, workers), workers) as audited:
        return audited(folder, run_model(folder, wanted.setting), omega0(folder, wanted.setting))


def standard(
    folder: Path,
    against: Path | None = None,
    *,
    again: Path | None = None,
    twins: int | None = None,
    margin: float = MARGIN,
    relearn: int = 0,
) -> Standard:
    """Return the standard for the model of a run folder; nothing is trained yet."""
    require(0 < margin < 0.5, "margin", margin, "between 0 and 0.5")
    require_count("relearn", relearn)
    require_count("twins", twins or 0)
    experiment = finished_experiment(folder)
    require_listed(folder)  # before anything is trained: the evidence will be written there
    if again is not None and against is None:
        raise FedUnlearnError("a second retraining is named without a first: name the first, too")
    retrained = {
        f"retraining-{number}": other for number, other in enumerate((against, again), 1) if other is not None
    }
    told = (note for other in retrained.values() for note in _checked(experiment, folder, other))
    notes = list(dict.fromkeys(told))
    unknown = experiment.checkpoint is not None
    if unknown and not retrained:
        notes.append(
            "ω⁰ is a checkpoint, and how long it was trained is unknown: a verdict needs a retraining that "
            "is named with --against."
        )
    setting = prepare(experiment)
    for target in setting.population.targets:  # refused before anything is trained
        held = setting.population.auditing[target]
        compared_sets(target, held)
        if relearn:
            taught(target, held, EXAMPLES)
    made = references(
        setting,
        retrainings=0 if retrained or unknown else 2,
        twins=number_of_twins(experiment) if twins is None else twins,
    )
    return Standard(setting, retrained, made, tuple(notes), margin, relearn)


@contextmanager
def auditing(wanted: Standard, models: Mapping[str, Made], workers: int | None) -> Iterator[Audit]:
    """The clients of a standard, ready to audit any number of models."""
    setting = wanted.setting
    clients, targets = setting.population.auditing, setting.population.targets
    twins = {name: made for name, made in models.items() if name.startswith("twin")}

    curves: dict[str, Curves] = {}

    with setting.federation(clients, workers, Stage.UNLEARNING) as federation:

        def relearning(model: Made, retrained: Made, original: Made) -> Relearning:
            found = relearn(
                federation,
                model.state,
                targets=targets,
                retrained=curves.get(retrained.sha256, retrained.state),
                original=original.state,
                lr=setting.experiment.recovery.lr,
                training=setting.training,
                participation=setting.participation,
                seed=derive("relearning", setting.seed),
                rounds=wanted.relearn,
                clients=clients,
            )
            curves[retrained.sha256] = found.retrained
            return found

        def audited(folder: Path, model: Made, original: Made) -> Evidence:
            retrained, again, notes = _beside(model, models)
            found = audit(
                federation,
                model.state,
                targets=targets,
                retrained=None if retrained is None else retrained.state,
                original=original.state,
                again=None if again is None else again.state,
                references=[twin.state for twin in twins.values()],
                clients=clients,
                margin=wanted.margin,
                notes=[*wanted.notes, *notes],
                method=str(model.how.get("method")),
            )
            if wanted.relearn and retrained is not None:
                found = replace(found, relearning=relearning(model, retrained, original))
            named = {"model": model, "original": original, "retrained": retrained, "again": again, **twins}
            used = {name: {"sha256": made.sha256, **made.how} for name, made in named.items() if made}
            with locked(folder / "lock", wait=True):
                claim(folder).write({"evidence.json": json_bytes({**found.to_json(), "models": used})})
            return found

        yield audited


def _beside(model: Made, models: Mapping[str, Made]) -> tuple[Made | None, Made | None, list[str]]:
    """The first and the second retraining; one that is audited itself is compared with the other."""
    first, second = models.get("retraining-1"), models.get("retraining-2")
    if first and second and model.sha256 == first.sha256:
        return second, None, ["The model is the first retraining, so it is compared with the second."]
    if first and second and model.sha256 == second.sha256:
        return first, None, []
    return first, second, []


def finished_experiment(folder: Path) -> Experiment:
    """The experiment of a run that has a model to audit."""
    experiment = recorded(folder)
    if (folder / "outcome.json").exists() and not finished(folder):
        outcome = read_outcome(folder)
        raise FedUnlearnError(
            f"the run in {folder} failed ({outcome['status']}: {outcome['reason']}), so there is no model to "
            "audit: change its settings and run it again",
            code="failed",
        )
    if not finished(folder):
        raise FedUnlearnError(
            f"the run in {folder} has not ended, so there is no model to audit: finish it with "
            f"fedunlearn resume {quote(str(folder))}",
            code="unfinished",
        )
    return experiment


def run_model(folder: Path, setting: Setting) -> Made:
    """The final model of a run."""
    experiment = recorded(folder)
    state = read_model(UserFile(path=folder / "model.safetensors"), setting.build(0))
    requests = [earlier(folder, number) for number in range(1, experiment.request.requests)]
    rounds = sum(int(read_metrics(place)[-1]["elapsed"]) for place in (*requests, folder))
    how = {"made": "run", "method": experiment.method, "rounds": rounds}
    number = {"number": experiment.options.get("number", 1)} if experiment.method in RETRAININGS else {}
    made = Made(state, how | number)
    if made.sha256 != read_outcome(folder)["model_sha256"]:
        raise FedUnlearnError(
            f"{folder / 'model.safetensors'} is not the model that outcome.json names: {RECOVERY_HINT}",
            code="damaged",
        )
    return made


def omega0(folder: Path, setting: Setting) -> Made:
    """The model that a run started from."""
    state, _ = read_state(folder / "omega0.safetensors")
    if setting.experiment.checkpoint is not None:
        return Made(state, {"made": "checkpoint"})
    return Made(state, {"made": "pre-training", "rounds": setting.experiment.pretraining.rounds})


def _checked(experiment: Experiment, folder: Path, other: Path) -> list[str]:
    """Return the limits of a retraining as the standard of a run; refused where it cannot be one."""
    retraining = finished_experiment(other)
    if retraining.method not in RETRAININGS:
        raise FedUnlearnError(
            f"{other} is a run of {retraining.method}, and only a retraining is a standard: "
            f"name a run with method={' or '.join(RETRAININGS)}"
        )
    for name in SHARED:
        ours, theirs = _shared(experiment, name), _shared(retraining, name)
        if ours != theirs:
            raise FedUnlearnError(
                f"{folder} and {other} do not have the same {name} ({_difference(ours, theirs)}): retrain "
                f"with the same {name}"
            )
    notes = []
    rounds, budget = sum(phase.rounds for phase in retraining.phases()), experiment.pretraining.rounds
    if experiment.checkpoint is not None:
        notes.append("How long ω⁰ was trained is not known: retraining must have had the same rounds.")
    elif retraining.method != "retrain":
        notes.append(
            f"Retraining was {retraining.method} with {rounds:,} rounds, not the training of ω⁰ with "
            f"{budget:,}: neither saw the targets' data, but accuracies may differ for other reasons."
        )
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
    return value.model_dump(exclude={"directory", "successive"}) if hasattr(value, "model_dump") else value


def _difference(ours: Any, theirs: Any) -> str:
    if isinstance(ours, dict):
        key = next(key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key))
        return f"{key}: {_difference(ours.get(key), theirs.get(key))}"
    return f"{ours!r} and {theirs!r}"
