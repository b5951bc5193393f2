"""Tables of evidence: of the rows of a comparison, and of the models of one audit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median_low

from ..evidence import Comeback, Evidence, Influence, Rate, TargetEvidence, corrected
from ..measures.metrics import Metric
from .evidence import read_evidence, verdict_text
from .summary import mean_text
from .tables import Lines

REFERENCES = {"omega0": "ω⁰", "retraining-1": "retraining", "retraining-2": "second retraining"}
"""Models that a comparison audits itself: titles by folder below ``references/seed-N``."""

Told = tuple[str, str, float | str | None]
"""The text of a cell, its standard deviation, and what it is sorted by; None if there is nothing to show."""


@dataclass(frozen=True)
class Column:
    """A column of a table of evidence: one line says what it means."""

    key: str
    title: str
    help: str
    told: Callable[[Sequence[Evidence]], Told]


def _numbers(metric: Metric, of: Callable[[Evidence], float | None]) -> Column:
    """The mean of a number over audits ± its sample standard deviation (n − 1)."""

    def told(evidence: Sequence[Evidence]) -> Told:
        values = [value for each in evidence if (value := of(each)) is not None]
        return (*mean_text(metric, values), fmean(values) if values else None)

    return Column(metric.key, metric.title, metric.help, told)


def _words(key: str, title: str, help: str, tell: Callable[[Sequence[Evidence]], str]) -> Column:
    def told(evidence: Sequence[Evidence]) -> Told:
        text = tell(evidence)
        return text, "", None if text == "–" else text

    return Column(key, title, help, told)


def _mean(of: Callable[[TargetEvidence], float | None]) -> Callable[[Evidence], float | None]:
    """The mean over the targets that have the number."""

    def measured(evidence: Evidence) -> float | None:
        values = [value for target in evidence.targets.values() if (value := of(target)) is not None]
        return fmean(values) if values else None

    return measured


def _accuracy(evidence: Evidence, *, of_targets: bool) -> list[Influence]:
    clients = evidence.influence.get("accuracy", {})
    return [each for client, each in clients.items() if (client in evidence.targets) == of_targets]


def _target_accuracy(evidence: Evidence) -> float | None:
    found = _accuracy(evidence, of_targets=True)
    return fmean(each.value for each in found) if found else None


def _target_gap(evidence: Evidence) -> float | None:
    found = _accuracy(evidence, of_targets=True)
    return fmean(each.difference for each in found) if found else None


def _worst_gap(evidence: Evidence) -> float | None:
    return min((each.difference for each in _accuracy(evidence, of_targets=False)), default=None)


def harmed(evidence: Evidence) -> list[str] | None:
    """Retained clients that lose more accuracy than chance explains; None without a second retraining."""
    clients = evidence.influence.get("accuracy", {})
    known = {client: each for client, each in clients.items() if client not in evidence.targets}
    if all(each.beyond is None for each in known.values()):
        return None
    return [client for client, each in known.items() if each.beyond and each.difference < 0]


def below_floor(evidence: Evidence) -> list[str] | None:
    """The same by the noise floor alone, whatever the number of examples."""
    clients = evidence.influence.get("accuracy", {})
    known = {client: each for client, each in clients.items() if client not in evidence.targets}
    if all(each.floor is None for each in known.values()):
        return None
    return [client for client, each in known.items() if each.beyond_floor and each.difference < 0]


def _harmed(evidence: Evidence) -> float | None:
    found = harmed(evidence)
    return None if found is None else float(len(found))


def _gap(found: Mapping[str, Rate]) -> float | None:
    return found["model"].gap if "model" in found else None


def _distance(target: TargetEvidence, model: str) -> float | None:
    return target.distance[model].forgotten if model in target.distance else None


def verdict_counts(evidence: Sequence[Evidence]) -> str:
    """How often each verdict was given: ``EQUIVALENT 2/3, UNDER 1/3``."""
    told = [verdict_text(each.verdict) for each in evidence]
    return ", ".join(f"{verdict} {count}/{len(told)}" for verdict, count in Counter(told).most_common())


def alarm_count(evidence: Sequence[Evidence]) -> str:
    """In how many audits the hardest examples of a target raise an alarm, of those that could tell."""
    tails = [
        [target.tail.verdict for target in each.targets.values() if target.tail is not None]
        for each in evidence
    ]
    tested = [verdicts for verdicts in tails if verdicts]
    alarms = sum(any(verdict and verdict.alarm for verdict in verdicts) for verdicts in tested)
    return f"{alarms}/{len(tested)}" if tested else "–"


ATTACKS = ("post-training", "fine-tuning")
"""The retained clients train on; the target teaches some of its examples."""


def comeback(evidence: Evidence, attack: str) -> Comeback | None:
    """Return how soon the forgotten returns under an attack; None if that is not known."""
    if evidence.relearning is None:
        return None
    found: Comeback = getattr(evidence.relearning, attack.replace("-", ""))
    return None if found.threshold is None else found


def relearn_text(evidence: Sequence[Evidence], attack: str) -> str:
    """Rounds of the model / of retraining."""
    found = [back for each in evidence if (back := comeback(each, attack)) is not None]
    ours, theirs = ([back.rounds for back in found], [back.rounds_retrained for back in found])
    return f"{_rounds(ours, found)} / {_rounds(theirs, found)}" if found else "–"


def _rounds(rounds: Sequence[int | None], found: Sequence[Comeback]) -> str:
    """The median, with ``>`` where the forgotten does not return within the limit."""
    middle = median_low(math.inf if each is None else each for each in rounds)
    return f"> {found[0].limit}" if math.isinf(middle) else f"{middle:g}"


JUDGED = (
    _words(
        "audit_verdict",
        "Verdict",
        "What the audit says of each seed. EQUIVALENT: like retraining, within the margin. UNDER: remembers "
        "more than retraining. OVER: worse on the forgotten examples than retraining. INCONCLUSIVE: too few "
        "examples or too much chance. NO SIGNAL: the test does not find the client in ω⁰ either.",
        verdict_counts,
    ),
    _words(
        "audit_alarms",
        "Hardest alarms",
        "Audits in which the hardest tenth of the examples differs from retraining, of those with enough.",
        alarm_count,
    ),
    _numbers(
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
    _numbers(
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
    _numbers(
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
    _numbers(
        Metric(
            "audit_asr_gap",
            "ASR gap",
            "share",
            1,
            "retraining",
            "Success of the backdoor on training pictures minus that after retraining.",
        ),
        _mean(lambda target: _gap(target.asr)),
    ),
)
"""Verdicts and what is shown first beside them."""

CLIENTS = (
    _numbers(
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
    _numbers(
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
    _numbers(
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
    _numbers(
        Metric(
            "audit_harmed",
            "Harmed",
            "clients",
            1,
            "lower",
            "Retained clients whose accuracy falls short of retraining beyond chance: by an exact test, "
            "corrected after Holm over clients and rows, and by more than three times the noise floor of two "
            "retrainings.",
        ),
        _harmed,
    ),
    _numbers(
        Metric("audit_n", "n", "examples", 0, "none", "Unseen examples of the retained client with fewest."),
        lambda evidence: min(
            (each.n for each in _accuracy(evidence, of_targets=False) if each.n), default=None
        ),
    ),
)
"""What clients gain and lose on unseen data."""

BESIDE = (
    _numbers(
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
    _numbers(
        Metric(
            "audit_tpr",
            "TPR 1 %",
            "share",
            1,
            "retraining",
            "Share of forgotten examples that an attack finds at 1 % false alarms; 1 % is chance. The row of "
            "retraining shows the level to reach.",
        ),
        _mean(lambda target: found["model"].tpr if (found := target.tpr.get("1 %")) else None),
    ),
    _numbers(
        Metric(
            "audit_js",
            "JS",
            "",
            3,
            "lower",
            "Mean Jensen–Shannon distance of outputs on forgotten examples to those of retraining, 0 to 1.",
        ),
        _mean(lambda target: _distance(target, "model")),
    ),
    _numbers(
        Metric(
            "audit_js_floor",
            "JS floor",
            "",
            3,
            "none",
            "The same distance between two retrainings: what chance alone explains.",
        ),
        _mean(lambda target: _distance(target, "again")),
    ),
    _numbers(
        Metric(
            "audit_probe_gap",
            "Probe gap",
            "share",
            1,
            "retraining",
            "Accuracy of a linear probe on the last hidden layer, on the targets' unseen examples, minus "
            "that of retraining. Above 0 the layer still holds what the outputs may hide.",
        ),
        _mean(lambda target: _gap(target.probe)),
    ),
    _numbers(
        Metric(
            "audit_tow",
            "ToW",
            "",
            3,
            "higher",
            "Tug of war: the product of 1 − |accuracy − accuracy of retraining| on forgotten, retained and "
            "test examples; 1 is like retraining.",
        ),
        lambda evidence: found["model"].value if (found := evidence.tug_of_war) else None,
    ),
    _numbers(
        Metric(
            "audit_asr_unseen_gap",
            "ASR gap, unseen",
            "share",
            1,
            "retraining",
            "Success of the backdoor on pictures that nobody trained on, minus that after retraining.",
        ),
        _mean(lambda target: _gap(target.asr_unseen)),
    ),
    *(
        _words(
            f"audit_{attack}",
            f"Relearn, {attack}",
            f"Rounds of {attack} until the forgotten returns to the model / to retraining, which never knew "
            "it; the median over seeds. > means that it did not return in time.",
            partial(relearn_text, attack=attack),
        )
        for attack in ATTACKS
    ),
)
"""What never decides a verdict."""

TABLES = {
    "Verdicts": JUDGED,
    "Clients, on unseen data": CLIENTS,
    "Measures beside the verdict": BESIDE,
}
"""Columns by the caption of their table."""


def audited(rows: Mapping[str, Sequence[Path]]) -> dict[str, list[Evidence]]:
    """The evidence in the folders of each row; rows without any are omitted.

    Exact tests of accuracy are corrected over all of them.
    """
    found = {
        row: [each for folder in folders if (each := read_evidence(folder))] for row, folders in rows.items()
    }
    every = [each for evidence in found.values() for each in evidence if "accuracy" in each.influence]
    judged = dict(zip(map(id, every), corrected([each.influence["accuracy"] for each in every]), strict=True))
    return {
        row: [
            replace(each, influence={**each.influence, "accuracy": judged[id(each)]})
            if id(each) in judged
            else each
            for each in evidence
        ]
        for row, evidence in found.items()
        if evidence
    }


def filled(columns: Sequence[Column], found: Mapping[str, Sequence[Evidence]]) -> list[Column]:
    """The columns with something to show."""
    return [
        column
        for column in columns
        if any(column.told(evidence)[-1] is not None for evidence in found.values())
    ]


def evidence_tables(rows: Mapping[str, Sequence[Path]]) -> list[Lines]:
    """Verdicts and measures of the audited folders of each row; none if nothing was audited."""
    found = audited(rows)
    tables = [filled(columns, found) for columns in TABLES.values()]
    return [
        [
            ["", *(column.title for column in columns)],
            *(
                [row, *(_text(column.told(evidence)) for column in columns)]
                for row, evidence in found.items()
            ),
        ]
        for columns in tables
        if columns
    ]


def _text(told: Told) -> str:
    return " ".join(filter(None, told[:2]))
