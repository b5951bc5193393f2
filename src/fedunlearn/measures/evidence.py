"""The measures of an audit: how each is called and written, what it means, and its value for each model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from ..core import ClientId
from ..evidence import Evidence, Finding, Interval, Rate
from .metrics import Better, Metric


@dataclass(frozen=True)
class Value:
    """A number of one model."""

    number: float
    interval: Interval | None = None
    n: int | None = None
    """The number of examples of a share."""
    gap_interval: Interval | None = None
    """Of the difference to retraining."""
    more: bool = False
    """Whether the number is only a bound that the true one exceeds."""

    @property
    def known(self) -> float | None:
        """The number; None if there is only a bound."""
        return None if self.more else self.number


Values: TypeAlias = Mapping[str, Value]
"""By model: ``model``, ``retrained``, ``again`` (the second retraining), ``original`` (ω⁰), where known."""


@dataclass(frozen=True)
class Measure:
    """One measure of an audit."""

    metric: Metric
    of: Callable[[Evidence, ClientId], Values]
    """The values about a target; of some measures, they are the same for all targets."""

    def text(self, value: Value | None, *, interval: bool = False) -> str:
        """Return a value as tables write it."""
        if value is None:
            return "–"
        text = f"{'> ' * value.more}{self.metric.text(value.number)}"
        if not interval or value.interval is None:
            return text
        return f"{text} [{self.metric.text(value.interval.low)}, {self.metric.text(value.interval.high)}]"

    def gap(self, evidence: Evidence, target: ClientId) -> float | None:
        """Return the value of the model minus that of retraining; None where one of them is not known."""
        found = self.of(evidence, target)
        if not found.keys() >= {"model", "retrained"}:
            return None
        return found["model"].number - found["retrained"].number


def _finding(found: Finding | None, original: Finding | None = None) -> Values:
    values = {} if found is None else {"model": Value(found.auc, found.interval)}
    if found is not None and found.reference_auc is not None:
        values["retrained"] = Value(found.reference_auc)
    return values if original is None else values | {"original": Value(original.auc, original.interval)}


def _auc(evidence: Evidence, target: ClientId) -> Values:
    return _finding(evidence.targets[target].finding, evidence.targets[target].original)


def _hardest(evidence: Evidence, target: ClientId) -> Values:
    return _finding(evidence.targets[target].tail)


def _plain(evidence: Evidence, target: ClientId) -> Values:
    return _finding(evidence.targets[target].losses)


def _tail(evidence: Evidence, target: ClientId, fpr: str) -> Values:
    finding, rates = evidence.targets[target].finding, evidence.targets[target].tpr.get(fpr, {})
    n = min(finding.n_forgotten, finding.n_unseen)
    return {model: Value(rate.tpr, rate.interval, n) for model, rate in rates.items()}


def _distance(evidence: Evidence, target: ClientId, examples: str) -> Values:
    found = evidence.targets[target].distance
    return {model: Value(getattr(each, examples)) for model, each in found.items()}


def _rate(evidence: Evidence, target: ClientId, name: str) -> Values:
    rates: Mapping[str, Rate] = getattr(evidence.targets[target], name)
    return {
        model: Value(rate.share, rate.interval, rate.n, rate.gap_interval) for model, rate in rates.items()
    }


def _canaries(evidence: Evidence, target: ClientId) -> Values:
    found = evidence.targets[target].canaries
    return {model: Value(each.correct / each.guesses) for model, each in found.items() if each.guesses}


def _accuracy(evidence: Evidence, target: ClientId) -> Values:
    found = evidence.influence.get("accuracy", {}).get(target)
    return {} if found is None else {"model": Value(found.value), "retrained": Value(found.retrained)}


def _tug(evidence: Evidence, target: ClientId) -> Values:
    return {model: Value(found.value) for model, found in evidence.tug_of_war.items()}


def _relearn(evidence: Evidence, target: ClientId, attack: str) -> Values:
    found = None if evidence.relearning is None else getattr(evidence.relearning, attack)
    if found is None or found.threshold is None:
        return {}  # ω⁰ knows no more than retraining
    rounds = {"model": found.rounds, "retrained": found.rounds_retrained}
    return {
        model: Value(found.limit if needed is None else needed, more=needed is None)
        for model, needed in rounds.items()
    }


def _measure(
    key: str,
    title: str,
    unit: str,
    better: Better,
    of: Callable[[Evidence, ClientId], Values],
    help: str,
) -> Measure:
    digits = {"share": 1, "rounds": 0}.get(unit, 3)
    return Measure(Metric(key, title, unit, digits, better, help), of)


_TABLE = (
    _measure(
        "auc",
        "AUC",
        "",
        "retraining",
        _auc,
        "Decides the verdict: the probability that the calibrated loss of a forgotten example is below that "
        "of an unseen one. Above retraining: remembered. Below: worse than retraining.",
    ),
    _measure(
        "hardest",
        "Hardest AUC",
        "",
        "retraining",
        _hardest,
        "The same on the hardest tenth of the examples, where memory shows first. Only raises alarms.",
    ),
    _measure(
        "plain",
        "Plain AUC",
        "",
        "none",
        _plain,
        "The AUC of plain losses, which many attacks use; near 0.5 also where nothing was forgotten.",
    ),
    *(
        _measure(
            key,
            f"TPR {fpr}",
            "share",
            "retraining",
            partial(_tail, fpr=fpr),
            f"Share of forgotten examples that an attack finds at {fpr} false alarms; {fpr} is chance.",
        )
        for key, fpr in (("tpr", "1 %"), ("tpr_01", "0.1 %"))
    ),
    _measure(
        "js",
        "JS",
        "",
        "lower",
        partial(_distance, examples="forgotten"),
        "Mean Jensen–Shannon distance of outputs on forgotten examples to those of retraining, 0 to 1. The "
        "second retraining is chance.",
    ),
    _measure(
        "js_unseen",
        "JS, unseen",
        "",
        "lower",
        partial(_distance, examples="unseen"),
        "The same on unseen examples: an equal excess here is a changed model, not memory.",
    ),
    _measure(
        "probe",
        "Probe",
        "share",
        "retraining",
        partial(_rate, name="probe"),
        "Accuracy of a linear probe on the last hidden layer, on the targets' unseen examples. Above "
        "retraining: the layer still holds what the outputs may hide.",
    ),
    _measure(
        "asr",
        "ASR",
        "share",
        "retraining",
        partial(_rate, name="asr"),
        "Success of the backdoor on training examples. Compare with retraining; zero is not the aim.",
    ),
    _measure(
        "asr_unseen",
        "ASR, unseen",
        "share",
        "retraining",
        partial(_rate, name="asr_unseen"),
        "Success of the backdoor on examples that nobody trained on: does the trigger work?",
    ),
    _measure(
        "canaries",
        "Canaries",
        "share",
        "none",
        _canaries,
        "Share of right guesses which planted examples were trained on; 50 % is chance.",
    ),
    _measure(
        "target_acc",
        "Target acc",
        "share",
        "retraining",
        _accuracy,
        "Accuracy on the target's unseen data: what the model knows of its kind of data.",
    ),
    _measure(
        "tow",
        "ToW",
        "",
        "higher",
        _tug,
        "Tug of war: the product of 1 − |accuracy − accuracy of retraining| on forgotten, retained and test "
        "examples; 1 is like retraining.",
    ),
    _measure(
        "relearn_posttraining",
        "Relearn, post-training",
        "rounds",
        "retraining",
        partial(_relearn, attack="posttraining"),
        "Rounds until the forgotten returns while the retained clients train on. > means that it did not.",
    ),
    _measure(
        "relearn_finetuning",
        "Relearn, fine-tuning",
        "rounds",
        "retraining",
        partial(_relearn, attack="finetuning"),
        "Rounds until the forgotten returns while the target teaches some of it. > means that it did not.",
    ),
)

MEASURES: Mapping[str, Measure] = {measure.metric.key: measure for measure in _TABLE}
"""Every measure of an audit by its key, in the order of tables."""
