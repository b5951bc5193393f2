"""Tables of evidence: of the rows of a comparison, and of the models of one audit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Literal

from ..evidence import Evidence, Influence, corrected
from ..measures.evidence import MEASURES, Value
from ..measures.metrics import Metric
from .evidence import read_evidence, verdict_text
from .summary import mean_text
from .tables import Lines

REFERENCES = {"omega0": "ω⁰", "retraining-1": "retraining", "retraining-2": "second retraining"}
"""Models that a comparison audits itself: titles by folder below ``references/seed-N``."""

CellText = tuple[str, str, float | str | None]
"""The text of a cell, its standard deviation, and what it is sorted by; None if there is nothing to show."""


@dataclass(frozen=True)
class Column:
    """A column of a table of evidence: one line says what it means."""

    key: str
    title: str
    help: str
    cell: Callable[[Sequence[Evidence]], CellText]


def _numbers(metric: Metric, of: Callable[[Evidence], float | None]) -> Column:
    """The mean of a number over audits ± its sample standard deviation (n − 1)."""

    def cell(evidence: Sequence[Evidence]) -> CellText:
        values = [value for each in evidence if (value := of(each)) is not None]
        return (*mean_text(metric, values), fmean(values) if values else None)

    return Column(metric.key, metric.title, metric.help, cell)


def _words(key: str, title: str, help: str, words: Callable[[Sequence[Evidence]], str]) -> Column:
    def cell(evidence: Sequence[Evidence]) -> CellText:
        text = words(evidence)
        return text, "", None if text == "–" else text

    return Column(key, title, help, cell)


def _retained(evidence: Evidence) -> dict[str, Influence]:
    """The accuracy of retained clients on their unseen data."""
    clients = evidence.influence.get("accuracy", {})
    return {client: each for client, each in clients.items() if client not in evidence.targets}


def _worst_gap(evidence: Evidence) -> float | None:
    return min((each.difference for each in _retained(evidence).values()), default=None)


def harmed(evidence: Evidence) -> list[str] | None:
    """Retained clients that lose more accuracy than chance explains; None without a second retraining."""
    known = _retained(evidence)
    if all(each.beyond is None for each in known.values()):
        return None
    return [client for client, each in known.items() if each.beyond and each.difference < 0]


def below_floor(evidence: Evidence) -> list[str] | None:
    """The same by the noise floor alone, whatever the number of examples."""
    known = _retained(evidence)
    if all(each.floor is None for each in known.values()):
        return None
    return [client for client, each in known.items() if each.beyond_floor and each.difference < 0]


def _harmed(evidence: Evidence) -> float | None:
    found = harmed(evidence)
    return None if found is None else float(len(found))


def verdict_counts(evidence: Sequence[Evidence]) -> str:
    """Say how often each verdict was given: ``EQUIVALENT 2/3, UNDER 1/3``."""
    counts = Counter(verdict_text(each.verdict) for each in evidence)
    return ", ".join(f"{verdict} {count}/{len(evidence)}" for verdict, count in counts.most_common())


def alarm_count(evidence: Sequence[Evidence]) -> str:
    """Say in how many audits the hardest examples of a target raise an alarm, of those that could tell."""
    tails = [
        [target.tail.verdict for target in each.targets.values() if target.tail is not None]
        for each in evidence
    ]
    tested = [verdicts for verdicts in tails if verdicts]
    alarms = sum(any(verdict and verdict.alarm for verdict in verdicts) for verdicts in tested)
    return f"{alarms}/{len(tested)}" if tested else "–"


def _measured(key: str, shown: Literal["", "gap", "floor"] = "") -> Column:
    """A measure of the model; what it has more than retraining; or that of the second retraining."""
    measure = MEASURES[key]
    metric = measure.metric
    help = {
        "": metric.help,
        "gap": f"{metric.title} minus that of retraining. {metric.help}",
        "floor": f"{metric.title} of a second retraining: what chance alone explains.",
    }[shown]

    def number(evidence: Evidence, target: str) -> float | None:
        if shown == "gap":
            return measure.gap(evidence, target)
        value = measure.of(evidence, target).get("again" if shown else "model")
        return None if value is None else value.number

    def mean(evidence: Evidence) -> float | None:
        """The mean over the targets that have the number."""
        values = [found for target in evidence.targets if (found := number(evidence, target)) is not None]
        return fmean(values) if values else None

    title = " ".join(filter(None, (metric.title, shown)))
    name = "_".join(filter(None, ("audit", key, shown)))
    return _numbers(replace(metric, key=name, title=title, help=help), mean)


def _relearned(key: str) -> Column:
    """Median rounds of the model / of retraining."""
    measure = MEASURES[key]

    def words(audits: Sequence[Evidence]) -> str:
        found = [values for each in audits if (values := measure.of(each, next(iter(each.targets))))]
        return " / ".join(
            measure.text(sorted((each[model] for each in found), key=_rounds)[(len(found) - 1) // 2])
            for model in ("model", "retrained")
            if found
        )

    help = f"{measure.metric.help} The model / retraining, which never knew it; the median over seeds."
    return _words(f"audit_{key}", measure.metric.title, help, lambda audits: words(audits) or "–")


def _rounds(value: Value) -> float:
    return math.inf if value.more else value.number


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
    _measured("auc"),
    _measured("auc", "gap"),
    _measured("hardest", "gap"),
    _measured("asr", "gap"),
)
"""Verdicts and what is shown first beside them."""

CLIENTS = (
    _measured("target_acc"),
    _measured("target_acc", "gap"),
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
        lambda evidence: min((each.n for each in _retained(evidence).values() if each.n), default=None),
    ),
)
"""Gains and losses of clients on unseen data."""

BESIDE = (
    _measured("plain"),
    _measured("tpr"),
    _measured("js"),
    _measured("js", "floor"),
    _measured("probe", "gap"),
    _measured("tow"),
    _measured("asr_unseen", "gap"),
    _relearned("relearn_posttraining"),
    _relearned("relearn_finetuning"),
)
"""Measures that never decide a verdict."""

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
        if any(column.cell(evidence)[-1] is not None for evidence in found.values())
    ]


def evidence_tables(rows: Mapping[str, Sequence[Path]]) -> list[Lines]:
    """Verdicts and measures of the audited folders of each row; none if nothing was audited."""
    found = audited(rows)
    tables = [filled(columns, found) for columns in TABLES.values()]
    return [
        [
            ["", *(column.title for column in columns)],
            *(
                [row, *(_text(column.cell(evidence)) for column in columns)]
                for row, evidence in found.items()
            ),
        ]
        for columns in tables
        if columns
    ]


def _text(cell: CellText) -> str:
    return " ".join(filter(None, cell[:2]))
