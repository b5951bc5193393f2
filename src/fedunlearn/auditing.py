"""An audit: the clients compare models on their own data, and the server draws the conclusions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from torch import nn

from .client.audit import audit_job, rate_name, unpacked, unpacked_counts
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
    names_of,
    require_federation,
    require_type,
    vectors,
)
from .core.hashes import model_hash
from .core.threads import one_thread
from .driver.gate import admit
from .evidence import (
    MODELS,
    CanaryFinding,
    Evidence,
    Influence,
    OutputDistance,
    Paired,
    Rate,
    TailRate,
    TargetEvidence,
    TugOfWar,
    alarm_levels,
    canary_finding,
    client_influence,
    decide,
    exact_bounds,
    rates,
    tail_finding,
    tail_rate,
    tug_of_war,
    unjudged,
)
from .evidence.measures import exact_sentence
from .evidence.proportions import FPRS
from .evidence.record import omitted
from .evidence.verdicts import ALARM_MINIMUM, MARGIN, MINIMUM

Model: TypeAlias = State | Outcome | nn.Module
"""A model with its buffers, how a run ended, or a module."""


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
    method: str = "",
) -> Evidence:
    """Ask the clients whether a model has forgotten the targets as if it had been retrained without them.

    ``retrained`` was trained without the targets, as long as ``original`` (ω⁰) with them. Without it there is
    no verdict; without ω⁰ there are alarms, but no pass. ``again`` is a second retraining: then the mean of
    both is the standard of the verdict, and their difference shows how far chance moves accuracies.
    ``references``, for instance twins, calibrate losses; without any, the retrained models do. None of them
    may have seen the targets' data. ``method`` made the model: if it is exact, the evidence says so.

    The targets must be present: only they hold what is to be forgotten. They compare losses on ``forget`` (or
    what they train on) and on ``audit`` (or ``test``), and reveal AUCs with standard errors, counts and sums,
    never the loss of an example. Alarms about several targets are corrected after Holm.
    """
    require_type(isinstance(references, Sequence), "references", references, "give a list of models")
    require_type(not isinstance(notes, str), "notes", notes, "give a list of sentences")
    named, present = present_targets(federation, targets), federation.present()
    wanted = {*named, *(present if clients is None else names_of(clients, "clients"))}
    asked, absent = sorted(wanted & present), sorted(wanted - present)
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
        needed = jobs[True].expects.keys() & {"losses", "model", "original"}
        lacking = sorted(needed - getattr(replies.get(target), "arrays", {}).keys())
        if lacking:
            failure = replies.missing.get(target)
            why = f"sent no array {lacking[0]!r}: try again" if failure is None else failure.detail
            raise FedUnlearnError(f"target {target!r} was not audited, it {why}")
    found = _targets({target: replies[target] for target in named}, margin, minimum)
    parts = _parts(replies, named)
    tug = _tugs_of_war(replies, models, named, parts)
    return Evidence(
        found,
        _influences({client: each for client, each in replies.items() if client not in parts}, models),
        {
            **dict.fromkeys(absent, "not present"),
            **{client: replies.missing[client].detail for client in sorted(replies.missing)},
        },
        tuple(notes),
        tug,
        omitted(found, tug, parts) if retrained is not None else (),
        exact=exact_sentence(method),
    )


def present_targets(federation: Federation, targets: ClientId | Sequence[ClientId]) -> tuple[ClientId, ...]:
    """The targets, each once; refused where one is not present, because no other client holds its data."""
    require_federation(federation)
    named = names_of(targets)
    if not named:
        raise FedUnlearnError("no target is named: name the clients that were to be forgotten")
    present = federation.present()
    for target in named:
        if target not in present:
            raise FedUnlearnError(
                f"target {target!r} is not present{did_you_mean(target, present)}: it must still be there, "
                "because no other client holds its data"
            )
    return named


def as_state(model: Model) -> State:
    """A model's parameters and buffers."""
    if isinstance(model, nn.Module):
        return State(vectors.flatten(model), buffers=vectors.buffers(model))
    if isinstance(model, Outcome):
        if model.status.failed:
            raise FedUnlearnError(f"a model to audit comes from a run that failed: {model.reason}")
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


_TITLES = {
    "model": "the model",
    "original": "the model before unlearning",
    "retrained": "the retrained model",
    "again": "the second retrained model",
}


def _targets(
    replies: Mapping[ClientId, Reply], margin: float, minimum: int
) -> dict[ClientId, TargetEvidence]:
    """Return the findings of the targets; the levels of alarms depend on all of them."""
    pairs = {target: _sent(target, reply) for target, reply in replies.items()}
    levels = {
        test: dict(zip(held, alarm_levels(list(held.values())), strict=True))
        for test in ("model", "hardest")
        if (held := {target: each[test] for target, each in pairs.items() if test in each})
    }
    found = {}
    for target, reply in replies.items():
        plain, model, before, tail = (
            pairs[target].get(name) for name in ("losses", "model", "original", "hardest")
        )
        assert plain is not None
        losses = unjudged(plain.model, plain.n_forgotten, plain.n_unseen)
        finding = original = None
        if model is not None:
            finding = decide(model, before, margin=margin, minimum=minimum, level=levels["model"][target])
        if before is not None:
            original = decide(before, before, margin=margin, minimum=minimum)
        found[target] = TargetEvidence(
            finding or losses,
            original,
            None if tail is None else tail_finding(tail, level=levels["hardest"][target]),
            losses,
            _rates(reply, "backdoor"),
            _rates(reply, "backdoor-unseen"),
            _tails(target, reply),
            _distances(target, reply),
            _rates(reply, "probe") if plain.n_forgotten >= ALARM_MINIMUM else {},
            _canaries(reply),
        )
    return found


def _sent(target: ClientId, reply: Reply) -> dict[str, Paired]:
    """The comparisons of a target by name."""
    names = [name for name in ("losses", "model", "original", "hardest") if name in reply.arrays]
    try:
        found = {name: unpacked(reply.arrays[name]) for name in names}
        if len({(each.n_forgotten, each.n_unseen) for name, each in found.items() if name != "hardest"}) > 1:
            raise FedUnlearnError("compared models on different examples")
        return found
    except FedUnlearnError as error:
        raise FedUnlearnError(f"target {target!r} {error}") from None


def _rates(reply: Reply, held: str) -> dict[str, Rate]:
    """Shares of hits by model."""
    means = {model: reply.statistics.get(f"{model} {held}", {}).get("accuracy") for model in MODELS}
    counts = {model: (round(mean.total), mean.count) for model, mean in means.items() if mean is not None}
    return rates(counts) if "model" in counts else {}


def _tails(target: ClientId, reply: Reply) -> dict[str, dict[str, TailRate]]:
    """True positive rates by FPR and model; none without SciPy."""
    found: dict[str, dict[str, TailRate]] = {}
    for fpr in FPRS:
        sent = {model: reply.arrays.get(rate_name(model, fpr)) for model in MODELS}
        try:
            counts = {model: unpacked_counts(array) for model, array in sent.items() if array is not None}
        except FedUnlearnError as error:
            raise FedUnlearnError(f"target {target!r} {error}") from None
        if "model" in counts and exact_bounds():
            found[fpr] = {model: tail_rate(each) for model, each in counts.items()}
    return found


def _distances(target: ClientId, reply: Reply) -> dict[str, OutputDistance]:
    """Mean distances to retraining by model."""
    found = {}
    for model in MODELS:
        sums = reply.statistics.get(f"{model} outputs", {})
        if sums.keys() >= {"forgotten", "unseen"}:
            if not all(0 <= mean.value <= 1 for mean in sums.values()):
                raise FedUnlearnError(f"target {target!r} sent output distances that are not from 0 to 1")
            found[model] = OutputDistance(sums["forgotten"].value, sums["unseen"].value)
    return found if "model" in found else {}


def _parts(replies: Replies, targets: Collection[ClientId]) -> tuple[ClientId, ...]:
    """The targets that are parts of a client and have nothing but its unseen data."""

    def unseen(client: ClientId) -> list[Mapping[str, Mean]]:
        sums = replies[client].statistics
        return [sums.get(f"model {name}", {}) for name in ("test", "audit")]

    whole = {target: target.partition("#")[0] for target in targets}
    return tuple(t for t, c in whole.items() if t != c and c in replies and unseen(t) == unseen(c))


def _tugs_of_war(
    replies: Replies,
    models: Mapping[str, State],
    targets: Collection[ClientId],
    parts: Collection[ClientId],
) -> dict[str, TugOfWar]:
    """By model; empty where an accuracy is missing. Examples count alike, and once, whoever holds them."""
    names = [name for name in MODELS if name in models]
    sums: dict[str, dict[str, Mean]] = {name: {} for name in names}
    for client, reply in replies.items():
        own = ("forgotten", "forgotten") if client in targets else ("retained", "seen")
        for part, held in (own,) if client in parts else (own, ("test", None)):
            means = [
                _unseen(reply, name, "accuracy")
                if held is None
                else reply.statistics.get(f"{name} {held}", {}).get("accuracy")
                for name in names
            ]
            for name, mean in zip(names, means, strict=True):
                if mean is not None and None not in means:
                    sums[name][part] = sums[name][part] + mean if part in sums[name] else mean
    parts = ("forgotten", "retained", "test")
    if "retrained" not in models or not sums["retrained"].keys() >= set(parts):
        return {}
    accuracies = {name: {part: sums[name][part].value for part in parts} for name in names}
    standard = accuracies.pop("retrained")
    return {name: tug_of_war(found, standard) for name, found in accuracies.items()}


def _canaries(reply: Reply) -> dict[str, CanaryFinding]:
    found = {}
    for name in ("model", "original"):
        guesses = reply.statistics.get(f"{name} {STATISTIC}", {}).get("accuracy")
        if guesses is not None:
            found[name] = canary_finding(round(guesses.total), guesses.count)
    return found


def _influences(
    replies: Mapping[ClientId, Reply], models: Mapping[str, State]
) -> dict[str, dict[ClientId, Influence]]:
    """Accuracy and loss of every client on its unseen data, against retraining."""
    if "retrained" not in models:
        return {}
    found = {}
    names = [name for name in ("model", "retrained", "again") if name in models]
    for measure in ("accuracy", "loss"):
        values: dict[str, dict[ClientId, float]] = {name: {} for name in names}
        counts: dict[ClientId, int] = {}
        for client, reply in replies.items():
            means = [_unseen(reply, name, measure) for name in names]
            for name, mean in zip(names, means, strict=True):
                if mean is not None and None not in means:
                    values[name][client], counts[client] = mean.value, mean.count
        if values["model"]:
            found[measure] = client_influence(
                values["model"],
                values["retrained"],
                values.get("again"),
                counts if measure == "accuracy" else None,
            )
    return found


def _unseen(reply: Reply, model: str, measure: str) -> Mean | None:
    """The mean over ``test`` and ``audit``; the latter of a backdoored target has the trigger on it."""
    total: Mean | None = None
    for name in ("test",) if f"{model} backdoor" in reply.statistics else ("test", "audit"):
        mean = reply.statistics.get(f"{model} {name}", {}).get(measure)
        if mean is not None:
            total = mean if total is None else total + mean
    return total
