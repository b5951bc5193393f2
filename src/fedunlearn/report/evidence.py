"""The evidence of audits: read from run folders, and put into one table of a comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ..core import FedUnlearnError
from ..evidence import Finding, Influence, Interval, Verdict
from ..measure.metrics import Metric
from ..record import read_json
from .summary import mean_text
from .tables import Lines


@dataclass(frozen=True)
class AuditedTarget:
    """What an audit found about one target."""

    finding: Finding
    original: Finding | None
    tail: Finding | None
    losses: Finding | None
    asr: Mapping[str, float]
    """Success of the backdoor by model: ``model``, ``retrained``, ``original``; empty without a backdoor."""
    values: Mapping[str, Any]
    """All that the file says about the target."""


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
    values: Mapping[str, Any]
    """All that the file says."""


def read_evidence(folder: Path) -> RunEvidence | None:
    """The evidence about the model in a run folder; None if it was not audited."""
    path = folder / "evidence.json"
    if not path.exists():
        return None
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
            values["models"],
            values,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FedUnlearnError(
            f"{path} is not the evidence of an audit ({type(error).__name__}: {error}): delete it and audit "
            "the run again"
        ) from None


def _target(values: Mapping[str, Any]) -> AuditedTarget:
    finding = _finding(values["finding"])
    if finding is None:
        raise ValueError("a target has no finding")
    return AuditedTarget(
        finding,
        _finding(values.get("original")),
        _finding(values.get("tail")),
        _finding(values.get("losses")),
        {str(name): float(rate["share"]) for name, rate in values.get("asr", {}).items()},
        values,
    )


def _finding(values: Mapping[str, Any] | None) -> Finding | None:
    if values is None:
        return None
    return Finding(
        **{
            **values,
            "verdict": _verdict(values["verdict"]),
            "gate": _verdict(values.get("gate")),
            **{
                name: None if values.get(name) is None else Interval(**values[name])
                for name in ("interval", "difference_interval", "alarm_interval")
            },
        }
    )


def _verdict(value: str | None) -> Verdict | None:
    return None if value is None else Verdict(value)


@dataclass(frozen=True)
class Measure:
    """A number that an audit found about a model, as a column of the table."""

    metric: Metric
    of: Callable[[RunEvidence], float | None]


def _mean(of: Callable[[AuditedTarget], float | None]) -> Callable[[RunEvidence], float | None]:
    """The mean over the targets that have the number."""

    def measured(evidence: RunEvidence) -> float | None:
        values = [value for target in evidence.targets.values() if (value := of(target)) is not None]
        return fmean(values) if values else None

    return measured


def _accuracy(evidence: RunEvidence, *, of_targets: bool) -> list[Influence]:
    clients = evidence.influence.get("accuracy", {})
    return [each for client, each in clients.items() if (client in evidence.targets) == of_targets]


def _target_accuracy(evidence: RunEvidence) -> float | None:
    found = _accuracy(evidence, of_targets=True)
    return fmean(each.value for each in found) if found else None


def _target_gap(evidence: RunEvidence) -> float | None:
    found = _accuracy(evidence, of_targets=True)
    return fmean(each.difference for each in found) if found else None


def _worst_gap(evidence: RunEvidence) -> float | None:
    return min((each.difference for each in _accuracy(evidence, of_targets=False)), default=None)


def _harmed(evidence: RunEvidence) -> float | None:
    """Retained clients that lose more accuracy than chance explains; None without a second retraining."""
    known = [each for each in _accuracy(evidence, of_targets=False) if each.beyond is not None]
    return float(sum(bool(each.beyond) and each.difference < 0 for each in known)) if known else None


def _asr_gap(target: AuditedTarget) -> float | None:
    if not target.asr.keys() >= {"model", "retrained"}:
        return None
    return target.asr["model"] - target.asr["retrained"]


MEASURES = (
    Measure(
        Metric(
            "audit_auc",
            "AUC",
            "",
            3,
            "retraining",
            "Probability that the calibrated loss of a forgotten example is below that of an unseen one.",
        ),
        _mean(lambda target: target.finding.auc),
    ),
    Measure(
        Metric(
            "audit_difference",
            "AUC gap",
            "",
            3,
            "retraining",
            "AUC of the model minus that of retraining. Above 0 the model remembers more; below 0 it is "
            "worse on the forgotten examples than retraining.",
        ),
        _mean(lambda target: target.finding.difference),
    ),
    Measure(
        Metric(
            "audit_tail",
            "Hardest gap",
            "",
            3,
            "retraining",
            "The AUC gap on the hardest tenth of the examples, where memorisation shows first.",
        ),
        _mean(lambda target: target.tail.difference if target.tail else None),
    ),
    Measure(
        Metric(
            "audit_losses",
            "Plain AUC",
            "",
            3,
            "none",
            "The AUC of plain losses, which many attacks use; near 0.5 also where nothing was forgotten.",
        ),
        _mean(lambda target: target.losses.auc if target.losses else None),
    ),
    Measure(
        Metric(
            "audit_target_acc",
            "Target acc",
            "share",
            1,
            "retraining",
            "Accuracy on the targets' unseen data.",
        ),
        _target_accuracy,
    ),
    Measure(
        Metric(
            "audit_target_gap",
            "Target gap",
            "share",
            1,
            "retraining",
            "Accuracy on the targets' unseen data minus that of retraining.",
        ),
        _target_gap,
    ),
    Measure(
        Metric(
            "audit_worst_gap",
            "Worst gap",
            "share",
            1,
            "higher",
            "Accuracy minus that of retraining, on unseen data of the retained client that loses most.",
        ),
        _worst_gap,
    ),
    Measure(
        Metric(
            "audit_harmed",
            "Harmed",
            "clients",
            1,
            "lower",
            "Retained clients whose accuracy falls short of retraining by more than three times the noise "
            "floor of two retrainings.",
        ),
        _harmed,
    ),
    Measure(
        Metric(
            "audit_asr_gap",
            "ASR gap",
            "share",
            1,
            "retraining",
            "Success of the backdoor minus that after retraining.",
        ),
        _mean(_asr_gap),
    ),
)
"""The columns of the table, besides verdicts and alarms; a column that nothing fills is left out."""


def evidence_table(rows: Mapping[str, Sequence[Path]]) -> Lines:
    """Verdicts, alarms and measures of the audited folders of each row; empty if nothing was audited.

    A number is the mean over the folders ± their sample standard deviation (n − 1).
    """
    found = {
        row: [each for folder in folders if (each := read_evidence(folder))] for row, folders in rows.items()
    }
    found = {row: evidence for row, evidence in found.items() if evidence}
    every = [each for evidence in found.values() for each in evidence]
    shown = [measure for measure in MEASURES if any(measure.of(each) is not None for each in every)]
    header = ["", "Verdict", "Hardest alarms", *(measure.metric.title for measure in shown)]
    body = [
        [row, _verdicts(evidence), _alarms(evidence), *(_cell(measure, evidence) for measure in shown)]
        for row, evidence in found.items()
    ]
    return [header, *body] if body else []


def _verdicts(evidence: Sequence[RunEvidence]) -> str:
    """How often each verdict was given: ``EQUIVALENT 2/3, UNDER 1/3``."""
    told = ["none" if each.verdict is None else verdict_text(each.verdict) for each in evidence]
    return ", ".join(f"{verdict} {count}/{len(told)}" for verdict, count in Counter(told).most_common())


def verdict_text(verdict: Verdict) -> str:
    """A verdict as tables write it."""
    return verdict.replace("_", " ").upper()


def _alarms(evidence: Sequence[RunEvidence]) -> str:
    """In how many audits the hardest examples of a target raise an alarm, of those that could tell."""
    tails = [
        [target.tail.verdict for target in each.targets.values() if target.tail is not None]
        for each in evidence
    ]
    tested = [verdicts for verdicts in tails if verdicts]
    alarms = sum(any(verdict and verdict.alarm for verdict in verdicts) for verdicts in tested)
    return f"{alarms}/{len(tested)}" if tested else "–"


def _cell(measure: Measure, evidence: Sequence[RunEvidence]) -> str:
    values = [value for each in evidence if (value := measure.of(each)) is not None]
    return " ".join(filter(None, mean_text(measure.metric, values)))
