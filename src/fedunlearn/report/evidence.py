"""The evidence of an audit, read from a run folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..core import FedUnlearnError
from ..evidence import Finding, Influence, Interval, OutputDistance, Verdict
from ..runs import read_json, read_metrics, read_outcome, verify

ByModel = Mapping[str, float]
"""A number of ``model``, ``retrained``, ``again`` (the second retraining), ``original`` (ω⁰), where known."""


@dataclass(frozen=True)
class AuditedTarget:
    """What an audit found about one target."""

    finding: Finding
    original: Finding | None
    tail: Finding | None
    losses: Finding | None
    asr: ByModel
    """Success of the backdoor on training pictures; empty without a backdoor."""
    asr_unseen: ByModel
    """The same on pictures that nobody trained on."""
    tpr: Mapping[str, ByModel]
    """True positive rates by FPR, such as ``1 %``."""
    distance: Mapping[str, OutputDistance]
    """Of outputs to those of retraining."""
    probe: ByModel
    """Accuracy of a linear probe on unseen examples."""
    canaries: ByModel
    """Share of right guesses which canaries were trained on; empty where none are planted."""


@dataclass(frozen=True)
class Relearned:
    """Rounds until the forgotten returns under one attack; None if it does not within ``limit`` rounds."""

    model: float | None
    retrained: float | None
    limit: int


@dataclass(frozen=True)
class RunEvidence:
    """The contents of an ``evidence.json``."""

    verdict: Verdict | None
    sentences: tuple[str, ...]
    targets: Mapping[str, AuditedTarget]
    influence: Mapping[str, Mapping[str, Influence]]
    """By measure on unseen data (``accuracy``, ``loss``) and client."""
    models: Mapping[str, Mapping[str, Any]]
    """By name: the SHA-256 of each model, and how it was made."""
    missing: Mapping[str, str]
    """Retained clients that were not measured, and why."""
    notes: tuple[str, ...]
    omitted: tuple[str, ...]
    tug_of_war: ByModel
    relearning: Mapping[str, Relearned]
    """By attack, as in ``ATTACKS``; empty where relearning was not measured."""
    values: Mapping[str, Any]
    """All that the file says."""


ATTACKS = ("post-training", "fine-tuning")
"""The retained clients train on; the target teaches some of its examples."""


def read_evidence(folder: Path) -> RunEvidence | None:
    """The evidence about the model in a run folder; None if it was not audited."""
    path = folder / "evidence.json"
    if not path.exists():
        return None
    verify(folder, only=path.name)
    values = read_json(path)
    try:
        return RunEvidence(
            _verdict(values["verdict"]),
            tuple(map(str, values["sentences"])),
            {str(name): _target(found) for name, found in values["targets"].items()},
            {
                str(measure): {str(client): Influence(**each) for client, each in clients.items()}
                for measure, clients in values["influence"].items()
            },
            _made(folder, {str(name): dict(how) for name, how in values["models"].items()}),
            {str(client): str(why) for client, why in values.get("missing", {}).items()},
            tuple(map(str, values.get("notes", ()))),
            tuple(map(str, values.get("omitted", ()))),
            _numbers(values.get("tug_of_war", {}), "value"),
            _relearning(values.get("relearning") or {}),
            values,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FedUnlearnError(
            f"{path} is not the evidence of an audit ({type(error).__name__}: {error}): delete it and audit "
            "the run again"
        ) from None


def _made(folder: Path, models: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The models with what the runs beside this one tell of how those of the same hash were made."""
    if all("rounds" in how for how in models.values()):
        return dict(models)
    outcomes = [*folder.glob("outcome.json"), *folder.parent.glob("*/outcome.json")]
    outcomes += folder.parent.glob("*/seed-*/*/outcome.json")
    made = {read_outcome(path.parent).get("model_sha256"): path.parent for path in reversed(outcomes)}
    return {
        name: {**_run(place), **how} if (place := made.get(how.get("sha256"))) else how
        for name, how in models.items()
    }


def _run(folder: Path) -> dict[str, Any]:
    """How a run made its model, if its files tell."""
    config, rows = read_json(folder / "experiment.json"), read_metrics(folder)
    rounds = {"rounds": int(rows[-1]["elapsed"])} if rows else {}
    made = {"made": "run", "method": config.get("method")} if "request" in config else {"made": "training"}
    return made | rounds


def _target(values: Mapping[str, Any]) -> AuditedTarget:
    finding = _finding(values["finding"])
    if finding is None:
        raise ValueError("a target has no finding")
    return AuditedTarget(
        finding,
        _finding(values.get("original")),
        _finding(values.get("tail")),
        _finding(values.get("losses")),
        _numbers(values.get("asr", {}), "share"),
        _numbers(values.get("asr_unseen", {}), "share"),
        {str(fpr): _numbers(found, "tpr") for fpr, found in values.get("tpr", {}).items()},
        {str(name): OutputDistance(**each) for name, each in values.get("distance", {}).items()},
        _numbers(values.get("probe", {}), "share"),
        {
            str(name): found["correct"] / found["guesses"]
            for name, found in values.get("canaries", {}).items()
            if found["guesses"]
        },
    )


def _numbers(found: Mapping[str, Any], key: str) -> dict[str, float]:
    return {str(model): _finite(each[key]) for model, each in found.items()}


def _relearning(values: Mapping[str, Any]) -> dict[str, Relearned]:
    """Without an attack that has no threshold: there, ω⁰ knows no more than retraining."""
    found = {attack: values[attack.replace("-", "")] for attack in ATTACKS} if values else {}
    return {
        attack: Relearned(_known(each["rounds"]), _known(each["rounds_retrained"]), int(each["limit"]))
        for attack, each in found.items()
        if each["threshold"] is not None
    }


def _finding(values: Mapping[str, Any] | None) -> Finding | None:
    if values is None:
        return None
    known = {each.name for each in fields(Finding)}  # files of earlier versions have further fields
    return Finding(
        **{
            **{name: value for name, value in values.items() if name in known},
            "verdict": _verdict(values["verdict"]),
            "gate": _verdict(values.get("gate")),
            **{name: _known(values.get(name)) for name in ("auc", "difference", "reference_auc", "margin")},
            **{
                name: None if values.get(name) is None else _interval(values[name])
                for name in ("interval", "difference_interval", "alarm_interval")
            },
        }
    )


def _interval(values: Mapping[str, Any]) -> Interval:
    return Interval(**{name: _finite(value) for name, value in values.items()})


def _known(value: Any) -> float | None:
    return None if value is None else _finite(value)


def _finite(value: Any) -> float:
    if not math.isfinite(value):
        raise ValueError(f"a number is {value}")
    return float(value)


def _verdict(value: str | None) -> Verdict | None:
    return None if value is None else Verdict(value)


def verdict_text(verdict: Verdict | None) -> str:
    """A verdict as tables write it."""
    return "none" if verdict is None else verdict.replace("_", " ").upper()
