"""An audit: the clients compare models on their own data, and the server draws the conclusions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from torch import nn

from .client.audit import audit_job, unpacked
from .client.canaries import STATISTIC
from .core import (
    ClientId,
    Federation,
    FedUnlearnError,
    Mean,
    Outcome,
    Replies,
    Reply,
    Selective,
    State,
    did_you_mean,
    vectors,
)
from .core.hashes import model_hash
from .core.threads import one_thread
from .driver.gate import admit
from .evidence import (
    CanaryFinding,
    Finding,
    Influence,
    Interval,
    Verdict,
    canary_finding,
    client_influence,
    decide,
    tail_finding,
    unjudged,
    wilson,
)
from .evidence.verdicts import MARGIN, MINIMUM

Model: TypeAlias = State | Outcome | nn.Module
"""A model with its buffers, how a run ended, or a module."""

SERIOUS = (Verdict.UNDER, Verdict.OVER, Verdict.INCONCLUSIVE, Verdict.NO_SIGNAL, Verdict.EQUIVALENT)
"""Of several targets, the first of these that one of them has is the verdict about all."""


@dataclass(frozen=True)
class Rate:
    """A share of examples with Wilson's 95 % interval."""

    share: float
    interval: Interval
    n: int


@dataclass(frozen=True)
class TargetEvidence:
    """What was found about one target."""

    finding: Finding
    """The verdict."""
    original: Finding | None = None
    """What the same test says of ω⁰."""
    tail: Finding | None = None
    """Of the hardest tenth of the examples, an alarm or none; None where they are too few."""
    losses: Finding | None = None
    """The AUC of plain losses, which many attacks use; never a verdict."""
    asr: Mapping[str, Rate] = field(default_factory=dict)
    """Success of the backdoor by model: ``model``, ``retrained``, ``original``; empty without a backdoor."""
    canaries: Mapping[str, CanaryFinding] = field(default_factory=dict)
    """What canaries show of ``model`` and ``original``; empty where none are planted."""


@dataclass(frozen=True)
class Evidence:
    """What an audit found. It is about this model and this retrained one, not about the method."""

    targets: Mapping[ClientId, TargetEvidence]
    influence: Mapping[str, Mapping[ClientId, Influence]]
    """By measure on unseen data (``accuracy``, ``loss``) and client; empty without a retrained model."""
    missing: Mapping[ClientId, str]
    """Retained clients that sent nothing that can be used, and why."""
    notes: tuple[str, ...] = ()
    """What limits the evidence."""

    @property
    def verdict(self) -> Verdict | None:
        """About all targets together: EQUIVALENT only if each of them is."""
        found = [evidence.finding.verdict for evidence in self.targets.values()]
        return None if None in found else next(verdict for verdict in SERIOUS if verdict in found)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The evidence in plain words: the targets first, then the clients, then what limits it."""
        told: list[str] = []
        for target, evidence in self.targets.items():
            told.append(f"{target}: {evidence.finding.sentence}")
            if evidence.tail is not None:
                told.append(f"{target}, hardest examples: {evidence.tail.sentence}")
            if evidence.asr:
                told.append(f"{target}, backdoor: {_asr_sentence(evidence.asr)}")
            told += [
                f"{target}, canaries{_OF[name]}: {found.sentence}"
                for name, found in evidence.canaries.items()
            ]
        told += [_influence_sentence(measure, found) for measure, found in self.influence.items()]
        if self.missing:
            client, why = next(iter(self.missing.items()))
            others = f", nor did {len(self.missing) - 1} others" if len(self.missing) > 1 else ""
            told.append(f"{client} was not measured ({why}){others}.")
        return (*told, *self.notes)

    def as_dict(self) -> dict[str, Any]:
        """The evidence as a value that JSON can hold."""
        return {"verdict": self.verdict, "sentences": list(self.sentences), **asdict(self)}


def audit(
    federation: Federation,
    model: Model,
    *,
    targets: ClientId | Sequence[ClientId],
    retrained: Model | None = None,
    original: Model | None = None,
    again: Model | None = None,
    references: Sequence[Model] = (),
    clients: Iterable[ClientId] | None = None,
    margin: float = MARGIN,
    minimum: int = MINIMUM,
    notes: Sequence[str] = (),
) -> Evidence:
    """Ask the clients whether a model has forgotten the targets as if it had been retrained without them.

    ``retrained`` was trained without the targets, as long as ``original`` (ω⁰) with them. Without it there is
    no verdict; without ω⁰ there are alarms, but no pass. ``again`` is a second retraining: it shows how far
    chance moves a client's accuracy, and does not affect the verdict. ``references``, for instance twins,
    calibrate losses; without any, the retrained model does. None of them may have seen the targets' data.

    The targets must be present: only they hold what is to be forgotten. They compare losses on ``forget`` (or
    what they train on) and on ``audit`` (or ``test``), and reveal AUCs with standard errors, never losses.
    """
    named = (targets,) if isinstance(targets, str) else tuple(targets)
    present = federation.present()
    for target in named:
        if target not in present:
            raise FedUnlearnError(
                f"target {target!r} is not present{did_you_mean(target, present)}: it must stay until the "
                "audit, because nobody else holds its data"
            )
    asked = sorted({*named, *(present if clients is None else present.intersection(clients))})
    models = _models(model, retrained, original, again, references)
    jobs = {
        compare: audit_job(
            models["model"],
            retrained=models.get("retrained"),
            original=models.get("original"),
            again=models.get("again"),
            references=[state for name, state in models.items() if name.startswith("reference")],
            compare=compare,
        )
        for compare in (True, False)
    }
    if isinstance(federation, Selective) and (why := federation.refusal(jobs[True])):
        raise FedUnlearnError(f"these clients cannot be audited: {why}")
    sent = {client: jobs[client in named] for client in asked}
    with one_thread():
        replies = admit(sent, federation.exchange(sent), {})
    for target in named:
        lacking = sorted(
            jobs[True].expects.keys() - getattr(replies.get(target), "arrays", {}).keys() - {"hardest"}
        )
        if lacking:
            failure = replies.missing.get(target)
            why = f"sent no array {lacking[0]!r}" if failure is None else failure.detail
            raise FedUnlearnError(f"target {target!r} was not audited, it {why}: try again")
    return Evidence(
        {target: _target(target, replies[target], margin, minimum) for target in named},
        _influences(replies, models),
        {client: failure.detail for client, failure in replies.missing.items()},
        tuple(notes),
    )


def as_state(model: Model) -> State:
    """A model's parameters and buffers."""
    if isinstance(model, nn.Module):
        return State(vectors.flatten(model), buffers=vectors.buffers(model))
    if isinstance(model, Outcome):
        return model.state
    if not isinstance(model, State):
        raise FedUnlearnError(
            f"a model to audit is a {type(model).__name__}: give a State, an Outcome or a module"
        )
    return model


def _models(
    model: Model,
    retrained: Model | None,
    original: Model | None,
    again: Model | None,
    references: Sequence[Model],
) -> dict[str, State]:
    """The models by name; refused where one is compared with itself."""
    if retrained is None and (again is not None or references):
        raise FedUnlearnError("a second retraining and references are of use beside a first: give retrained")
    given = {"model": model, "retrained": retrained, "again": again}
    given |= {f"reference {number}": each for number, each in enumerate(references)}
    if retrained is not None:  # without it, there is no test that could be tried on ω⁰
        given["original"] = original
    found = {name: as_state(each) for name, each in given.items() if each is not None}
    size, hashes = len(found["model"].params), {name: model_hash(state) for name, state in found.items()}
    for name, state in found.items():
        if len(state.params) != size:
            raise FedUnlearnError(
                f"the model has {size:,} parameters and {_TITLES.get(name, name)} has "
                f"{len(state.params):,}: compare models of one architecture"
            )
        if name in ("model", "original"):  # these two may be equal: ω⁰ can be audited itself
            continue
        for other in ("model", "original", "retrained"):
            if other in found and name != other and hashes[name] == hashes[other]:
                if name.startswith("reference") and other == "retrained":
                    continue  # the default
                raise FedUnlearnError(
                    f"{_TITLES[other]} and {_TITLES.get(name, name)} are equal: give different models"
                )
    return found


_OF = {"model": "", "original": " in ω⁰"}
_TITLES = {
    "model": "the model",
    "original": "the model before unlearning",
    "retrained": "the retrained model",
    "again": "the second retrained model",
}


def _target(target: ClientId, reply: Reply, margin: float, minimum: int) -> TargetEvidence:
    try:
        pairs = {name: unpacked(array) for name, array in reply.arrays.items()}
    except FedUnlearnError as error:
        raise FedUnlearnError(f"target {target!r} {error}") from None
    losses = unjudged(pairs["losses"].model, pairs["losses"].n_forgotten, pairs["losses"].n_unseen)
    asr, canaries = _asr(reply), _canaries(reply)
    if "model" not in pairs:
        return TargetEvidence(losses, losses=losses, asr=asr, canaries=canaries)
    before = pairs.get("original")
    return TargetEvidence(
        decide(pairs["model"], before, margin=margin, minimum=minimum),
        None if before is None else decide(before, before, margin=margin, minimum=minimum),
        tail_finding(pairs["hardest"]) if "hardest" in pairs else None,
        losses,
        asr,
        canaries,
    )


def _asr(reply: Reply) -> dict[str, Rate]:
    rates = {}
    for name in ("model", "retrained", "original"):
        found = reply.statistics.get(f"{name} backdoor", {}).get("accuracy")
        if found is not None:
            rates[name] = Rate(found.value, wilson(round(found.total), found.count), found.count)
    return rates


def _canaries(reply: Reply) -> dict[str, CanaryFinding]:
    found = {}
    for name in ("model", "original"):
        guesses = reply.statistics.get(f"{name} {STATISTIC}", {}).get("accuracy")
        if guesses is not None:
            found[name] = canary_finding(round(guesses.total), guesses.count)
    return found


def _influences(replies: Replies, models: Mapping[str, State]) -> dict[str, dict[ClientId, Influence]]:
    """Accuracy and loss of every client on its unseen data, against retraining."""
    if "retrained" not in models:
        return {}
    found = {}
    names = [name for name in ("model", "retrained", "again") if name in models]
    for measure in ("accuracy", "loss"):
        values: dict[str, dict[ClientId, float]] = {name: {} for name in names}
        for client, reply in replies.items():
            means = [_unseen(reply, name, measure) for name in names]
            for name, mean in zip(names, means, strict=True):
                if mean is not None and None not in means:
                    values[name][client] = mean.value
        if values["model"]:
            found[measure] = client_influence(values["model"], values["retrained"], values.get("again"))
    return found


def _unseen(reply: Reply, model: str, measure: str) -> Mean | None:
    """The mean over ``test`` and ``audit``; the latter of a backdoored target has the trigger on it."""
    total: Mean | None = None
    for name in ("test",) if f"{model} backdoor" in reply.statistics else ("test", "audit"):
        mean = reply.statistics.get(f"{model} {name}", {}).get(measure)
        if mean is not None:
            total = mean if total is None else total + mean
    return total


def _asr_sentence(asr: Mapping[str, Rate]) -> str:
    ours, theirs = asr["model"], asr.get("retrained")
    told = f"it succeeds on {ours.share:.3f} of {ours.n:,} examples (95 % interval {ours.interval})"
    return f"{told}, after retraining on {theirs.share:.3f}." if theirs else f"{told}."


def _influence_sentence(measure: str, found: Mapping[ClientId, Influence]) -> str:
    """Who is better or worse off than after retraining."""
    largest = max(found, key=lambda client: abs(found[client].difference))
    told = f"{largest} ({found[largest].difference:+.3f})"
    if found[largest].beyond is None:
        return (
            f"Unseen data, {measure}: the largest difference to retraining is that of {told}; whether it is "
            "chance, only a second retraining can tell."
        )
    beyond = [client for client, each in found.items() if each.beyond]
    if not beyond:
        return (
            f"Unseen data, {measure}: no client differs from retraining beyond chance, which is three times "
            f"the noise floor of two retrainings; the largest difference is that of {told}."
        )
    who = ", ".join(f"{client} ({found[client].difference:+.3f})" for client in beyond)
    return (
        f"Unseen data, {measure}: beyond chance, which is three times the noise floor of two retrainings, "
        f"differ: {who}."
    )
