"""The evidence of an audit as one value, from which files, tables, sentences and pages are made."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from ..core import ClientId
from .canaries import CanaryFinding
from .distances import TugOfWar
from .influence import Influence, influence_sentence
from .measures import (
    OutputDistance,
    Rate,
    distance_sentence,
    listed,
    rate_sentence,
    tail_sentence,
    tug_sentence,
)
from .proportions import FPRS, TailRate, exact_bounds, needed_unseen
from .relearning import Relearning
from .verdicts import ALARM_MINIMUM, Finding, Verdict

if TYPE_CHECKING:
    from pydantic import TypeAdapter

EDITION = 1
"""Of the keys of ``to_json``; files without it have those of edition 1."""

MODELS = ("model", "retrained", "original", "again")
"""The models that measures are about; references only calibrate."""

SERIOUS = (Verdict.UNDER, Verdict.OVER, Verdict.INCONCLUSIVE, Verdict.NO_SIGNAL, Verdict.EQUIVALENT)
"""Of several targets, the first of these that one of them has is the verdict about all."""


@dataclass(frozen=True)
class TargetEvidence:
    """The findings about one target."""

    finding: Finding
    """The verdict."""
    original: Finding | None = None
    """The same test's finding on ω⁰."""
    tail: Finding | None = None
    """Of the hardest tenth of the examples, an alarm or none; None where they are too few."""
    losses: Finding | None = None
    """The AUC of plain losses, which many attacks use; never a verdict."""
    asr: Mapping[str, Rate] = field(default_factory=dict)
    """Success of the backdoor on training examples by model, as in ``MODELS``; empty without a backdoor."""
    asr_unseen: Mapping[str, Rate] = field(default_factory=dict)
    """The same on triggered examples that nobody trained on."""
    tpr: Mapping[str, Mapping[str, TailRate]] = field(default_factory=dict)
    """By FPR (``1 %``, ``0.1 %``) and model: the share of forgotten examples whose calibrated loss is so low.

    A single retrained model that calibrates losses itself has none.
    """
    distance: Mapping[str, OutputDistance] = field(default_factory=dict)
    """Of outputs to those of retraining, by model: ``model``, ``original``, ``again`` (the noise floor)."""
    probe: Mapping[str, Rate] = field(default_factory=dict)
    """Accuracy, on unseen examples, of a linear probe on the last hidden layer, by model."""
    canaries: Mapping[str, CanaryFinding] = field(default_factory=dict)
    """The findings of canaries on ``model`` and ``original``; empty where none are planted."""


@dataclass(frozen=True)
class Evidence:
    """The findings of an audit, about this model and this retrained one, not about the method."""

    targets: Mapping[ClientId, TargetEvidence]
    influence: Mapping[str, Mapping[ClientId, Influence]]
    """By measure on unseen data (``accuracy``, ``loss``) and client; empty without a retrained model."""
    missing: Mapping[ClientId, str]
    """Retained clients that sent nothing that can be used, and why."""
    notes: tuple[str, ...] = ()
    """The limits of the evidence."""
    tug_of_war: Mapping[str, TugOfWar] = field(default_factory=dict)
    """Of accuracies on forgotten, retained and test examples, by model as in ``MODELS``."""
    omitted: tuple[str, ...] = ()
    """The measures that are missing, and why."""
    relearning: Relearning | None = None
    """The return of the forgotten, where that was tried."""
    exact: str = ""
    """The guarantee of the method itself, if it is exact."""
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By name: the SHA-256 of each model, and how it was made."""
    files: tuple[str, ...] = ()
    """The files that the evidence is written to."""

    def __str__(self) -> str:
        return "\n".join((*self.sentences, *(f"Written to {file}" for file in self.files)))

    @property
    def verdict(self) -> Verdict | None:
        """About all targets together: EQUIVALENT only if each of them is."""
        found = [evidence.finding.verdict for evidence in self.targets.values()]
        return None if None in found else next(verdict for verdict in SERIOUS if verdict in found)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The evidence in plain words: the targets first, then the clients, then what limits it."""
        told = [self.exact] if self.exact else []
        for target, evidence in self.targets.items():
            told.append(f"{target}: {evidence.finding.sentence}")
            if evidence.tail is not None:
                told.append(f"{target}, hardest examples: {evidence.tail.sentence}")
            told += [f"{target}, {sentence}" for sentence in _measures(evidence)]
        told += [
            influence_sentence(measure, found, self.targets) for measure, found in self.influence.items()
        ]
        if self.tug_of_war:
            told.append(tug_sentence(self.tug_of_war))
        if self.relearning is not None:
            told += self.relearning.sentences
        if self.missing:
            client, why = next(iter(self.missing.items()))
            more = len(self.missing) - 1
            others = f", nor {'was 1 other' if more == 1 else f'were {more} others'}" if more else ""
            told.append(f"{client} was not measured ({why}){others}.")
        return (*told, *self.omitted, *self.notes)

    def to_json(self) -> dict[str, Any]:
        """Return the evidence as a value that JSON can hold."""
        relearning = None if self.relearning is None else self.relearning.as_dict()
        found = {"edition": EDITION, "verdict": self.verdict, "sentences": list(self.sentences)}
        found |= {name: value for name, value in asdict(self).items() if name != "files"}
        return {**found, "relearning": relearning}

    @classmethod
    def from_json(cls, values: object) -> Evidence:
        """Return the evidence that ``to_json`` wrote; unknown keys, and those that follow, are ignored."""
        from pydantic import ValidationError

        json.dumps(values, allow_nan=False)
        try:
            return _reader().validate_python(values)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def omitted(
    found: Mapping[ClientId, TargetEvidence], tug: Mapping[str, TugOfWar], parts: Sequence[ClientId]
) -> tuple[str, ...]:
    """Say what was not measured, and why."""
    told = []
    if parts:
        told.append(f"{listed(parts)}: the unseen data is that of the client, so its accuracy counts once.")
    few = [target for target, each in found.items() if len(each.tpr) < len(FPRS)]
    least = min((found[target].finding.n_unseen for target in few), default=0)
    needed = {title: needed_unseen(fpr) for title, fpr in FPRS.items()}
    if few and least < max(needed.values()):
        needs = ", ".join(f"{number:,} at {title} FPR" for title, number in needed.items())
        told.append(
            f"True positive rates need many unseen examples ({needs}), and there are only {least:,}: "
            f"not all measured for {listed(few)}."
        )
    if least >= min(needed.values()) and not exact_bounds():
        told.append("True positive rates were not measured: SciPy is missing, install fedunlearn[evidence].")
    if none := [target for target, each in found.items() if not each.distance]:
        told.append(f"Output distances need one label for each example: not measured for {listed(none)}.")
    few = [target for target, each in found.items() if each.finding.n_forgotten < ALARM_MINIMUM]
    if few:
        told.append(
            f"The linear probe needs {ALARM_MINIMUM} forgotten examples: not shown for {listed(few)}."
        )
    if none := [target for target, each in found.items() if not each.probe and target not in few]:
        told.append(
            "The linear probe needs labels of at least two classes and a model with a linear layer behind "
            f"others: not measured for {listed(none)}."
        )
    if not tug:
        told.append("ToW needs accuracies on forgotten, retained and test examples, and one is missing.")
    return tuple(told)


@cache
def _reader() -> TypeAdapter[Evidence]:
    from pydantic import TypeAdapter

    return TypeAdapter(Evidence)


def _measures(evidence: TargetEvidence) -> Iterator[str]:
    """Say what was found in addition to the verdict."""
    for fpr, found in evidence.tpr.items():
        yield f"forgotten examples: {tail_sentence(fpr, found)}"
    if evidence.distance:
        yield f"outputs: {distance_sentence(evidence.distance)}"
    if evidence.probe:
        yield f"last hidden layer: {rate_sentence('a linear probe is right on', 'unseen', evidence.probe)}"
    for examples, asr in (("training", evidence.asr), ("unseen", evidence.asr_unseen)):
        if asr:
            yield f"backdoor: {rate_sentence('it succeeds on', examples, asr)}"
    yield from canary_sentences(evidence)


def canary_sentences(evidence: TargetEvidence) -> Iterator[str]:
    """Say what canaries show of each model."""
    for model, guessed in evidence.canaries.items():
        yield f"canaries{' in ω⁰' if model == 'original' else ''}: {guessed.sentence}"
