"""The entries of a certificate from an audit and a run: codes and rounded numbers, no names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from ..core import ClientId, FedUnlearnError, Reason
from ..core.registry import did_you_mean
from ..evidence import CanaryFinding, Evidence, Finding, Interval, TargetEvidence, Verdict
from ..measures.evidence import MEASURES
from ..runs import environment
from .predicate import Entry, Environment, Range
from .vocabulary import ALWAYS_UNTESTED, Bucket, GuardEvent, Measure, NotTested, Role

FINE, COARSE = 3, 2
"""Decimals. Those of shares are fewer: the interval of a share tells how many examples there are."""


def evidence_entries(
    evidence: Evidence | None, target: ClientId | None = None
) -> tuple[tuple[Entry, ...], tuple[NotTested, ...]]:
    """The entries of a certificate about one target, and what was not tested; None is no audit.

    Without ``target`` the evidence must be about one target only.
    """
    if evidence is None:
        return (), (NotTested.EVERYTHING, NotTested.RETAINED, *ALWAYS_UNTESTED)
    target = _target(evidence, target)
    found = evidence.targets[target]
    entries = (
        *_findings(found),
        *_measured(evidence, target, "tpr", "tpr_01", "probe", "asr", "asr_unseen", "js", "js_unseen"),
        *(canary_entry(each) for name, each in found.canaries.items() if name == "model"),
        *_measured(evidence, target, "tow"),
        *_retained(evidence),
        *_measured(evidence, target, "relearn_posttraining", "relearn_finetuning"),
    )
    return entries, tuple(_not_tested(evidence, {entry.measure for entry in entries}))


def canary_entry(found: CanaryFinding) -> Entry:
    """Return the entry of planted canaries: an alarm, or no verdict."""
    verdict, interval = None, None
    if found.bound is not None and found.reverse is not None:
        low, high = found.bound.accuracy_low, 1 - found.reverse.accuracy_low
        # Each bound is one-sided, so both together have twice the error of one.
        interval = Interval(low, high, 2 * found.bound.confidence - 1)
        verdict = Verdict.UNDER if low > 0.5 else Verdict.OVER if high < 0.5 else None
    return _entry(
        Measure.CANARIES,
        found.correct / found.guesses,
        interval=interval,
        reference=0.5,
        verdict=verdict,
        n=found.guesses,
        decimals=COARSE,
    )


def guard_counts(codes: Mapping[str, int]) -> tuple[dict[Reason, int], dict[GuardEvent, int]]:
    """The refused updates and the events of ``Outcome.guards`` in the words of a certificate."""
    refused: Counter[Reason] = Counter()
    events: Counter[GuardEvent] = Counter()
    for code, count in codes.items():
        kind, _, detail = code.partition(":")
        if kind == "refused":
            refused[Reason(detail)] += count
        else:
            events[_EVENTS.get(code) or _EVENTS.get(kind, GuardEvent.OTHER)] += count
    return dict(refused), dict(events)


_EVENTS = {
    "shortened": GuardEvent.SHORTENED,
    "cut:amplification": GuardEvent.AMPLIFICATION,
    "cut:step": GuardEvent.STEP,
    "halved": GuardEvent.HALVED,
    "left_out": GuardEvent.LEFT_OUT,
    "idle": GuardEvent.IDLE,
    "stopped": GuardEvent.STOPPED,
    "untried": GuardEvent.UNTRIED,
    "unmeasured": GuardEvent.UNMEASURED,
    "unmoved": GuardEvent.NOT_FORGOTTEN,
}


def this_environment() -> Environment:
    """The environment of this process."""
    found = environment()
    return Environment(
        fedunlearn=found["fedunlearn"],
        python=found["python"],
        torch=found["torch"],
        cpu_capability=found["cpu_capability"],
        threads=torch.get_num_threads(),
        platform=found["system"],
    )


def _target(evidence: Evidence, target: ClientId | None) -> ClientId:
    if target is None:
        if len(evidence.targets) != 1:
            raise FedUnlearnError(
                f"the audit is about {len(evidence.targets)} targets, and a certificate about one: name it"
            )
        return next(iter(evidence.targets))
    if target not in evidence.targets:
        hint = did_you_mean(target, evidence.targets)
        raise FedUnlearnError(f"the audit is not about {target!r}{hint}: name a target of it")
    return target


def _findings(found: TargetEvidence) -> Iterator[Entry]:
    if found.finding.verdict is not None:
        yield _finding(Measure.AUC, found.finding)
    if found.original is not None:
        yield _finding(Measure.AUC_BEFORE, found.original)
    if found.tail is not None:
        alarm = found.tail.verdict is not None and found.tail.verdict.alarm
        yield _finding(Measure.AUC_HARDEST, found.tail if alarm else replace(found.tail, verdict=None))
    losses = found.losses or (found.finding if found.finding.verdict is None else None)
    if losses is not None:
        yield _finding(Measure.AUC_LOSSES, losses)


def _finding(measure: Measure, found: Finding) -> Entry:
    alarm = found.verdict is not None and found.verdict.alarm
    return _entry(
        measure,
        found.auc,
        interval=found.interval,
        reference=found.reference_auc,
        difference=found.difference,
        difference_interval=found.alarm_interval if alarm else found.difference_interval,
        margin=found.margin,
        n=min(found.n_forgotten, found.n_unseen),
        verdict=found.verdict,
    )


MEASURED = {
    "tpr": (Measure.TPR_1, "retrained", Role.TARGET, FINE),
    "tpr_01": (Measure.TPR_01, "retrained", Role.TARGET, FINE),
    "probe": (Measure.PROBE, "retrained", Role.TARGET, COARSE),
    "asr": (Measure.BACKDOOR, "retrained", Role.TARGET, COARSE),
    "asr_unseen": (Measure.BACKDOOR_UNSEEN, "retrained", Role.TARGET, COARSE),
    "js": (Measure.JS_FORGOTTEN, "again", Role.TARGET, FINE),
    "js_unseen": (Measure.JS_UNSEEN, "again", Role.TARGET, FINE),
    "tow": (Measure.TOW, "again", Role.ALL, FINE),
    "relearn_posttraining": (Measure.RELEARN_POSTTRAINING, "retrained", Role.RETAINED, FINE),
    "relearn_finetuning": (Measure.RELEARN_FINETUNING, "retrained", Role.TARGET, FINE),
}
"""Of a measure of the audit: its code, the model that it is compared with, who computed it, and decimals."""


def _measured(evidence: Evidence, target: ClientId, *keys: str) -> Iterator[Entry]:
    """The entries of these measures, as far as they are known."""
    for key in keys:
        measure, standard, by, decimals = MEASURED[key]
        values = MEASURES[key].of(evidence, target)
        if (ours := values.get("model")) is None:
            continue
        theirs = values.get(standard)
        yield _entry(
            measure,
            ours.known,
            interval=ours.interval,
            reference=None if theirs is None else theirs.known,
            difference=MEASURES[key].gap(evidence, target) if ours.gap_interval else None,
            difference_interval=ours.gap_interval,
            n=ours.n,
            by=by,
            decimals=decimals,
        )


def _retained(evidence: Evidence) -> Iterator[Entry]:
    clients = evidence.influence.get("accuracy", {})
    retained = [found for client, found in clients.items() if client not in evidence.targets]
    if retained:
        worst = min(retained, key=lambda found: found.difference)
        mean = [
            sum(values) / len(retained)
            for values in zip(*((f.value, f.retrained) for f in retained), strict=True)
        ]
        for measure, (ours, theirs) in (
            (Measure.RETAINED_MEAN, mean),
            (Measure.RETAINED_WORST, (worst.value, worst.retrained)),
        ):
            yield _entry(
                measure, ours, reference=theirs, difference=ours - theirs, by=Role.RETAINED, decimals=COARSE
            )


def _not_tested(evidence: Evidence, measured: set[Measure]) -> Iterator[NotTested]:
    judged = Measure.AUC in measured
    for fine, untested in (
        (judged, NotTested.RETRAINING),
        (not judged or _second(evidence), NotTested.SECOND_RETRAINING),
        (Measure.AUC_BEFORE in measured, NotTested.CONTROL),
        (Measure.AUC_HARDEST in measured or not judged, NotTested.HARDEST),
        ({Measure.TPR_1, Measure.TPR_01} <= measured, NotTested.LOW_FPR),
        (Measure.JS_FORGOTTEN in measured, NotTested.OUTPUTS),
        (Measure.PROBE in measured, NotTested.HIDDEN),
        (Measure.BACKDOOR in measured, NotTested.BACKDOOR),
        (Measure.CANARIES in measured, NotTested.CANARIES),
        ({Measure.RELEARN_POSTTRAINING, Measure.RELEARN_FINETUNING} & measured, NotTested.RELEARNING),
        (Measure.RETAINED_MEAN in measured, NotTested.RETAINED),
        (not evidence.missing, NotTested.SOME_RETAINED),
    ):
        if not fine:
            yield untested
    yield from ALWAYS_UNTESTED


def _second(evidence: Evidence) -> bool:
    return any(found.floor is not None for found in evidence.influence.get("accuracy", {}).values())


def _entry(
    measure: Measure,
    value: float | None,
    *,
    interval: Interval | None = None,
    reference: float | None = None,
    difference: float | None = None,
    difference_interval: Interval | None = None,
    margin: float | None = None,
    n: int | None = None,
    verdict: Verdict | None = None,
    by: Role = Role.TARGET,
    decimals: int = FINE,
) -> Entry:
    def rounded(number: float | None) -> float | None:
        return None if number is None else round(float(number), decimals) + 0.0

    def ranged(found: Interval | None) -> Range | None:
        if found is None:
            return None
        low, high = round(found.low, decimals) + 0.0, round(found.high, decimals) + 0.0
        return Range(low=low, high=high, level=round(found.level, 6))

    return Entry(
        measure=measure,
        definition=measure.page,
        value=rounded(value),
        interval=ranged(interval),
        reference=rounded(reference),
        difference=rounded(difference),
        difference_interval=ranged(difference_interval),
        margin=margin,
        n=None if n is None else Bucket.of(n),
        verdict=verdict,
        computed_by=by,
    )
