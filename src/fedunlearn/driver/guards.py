"""Guards: limits on what a single client can do to the model, whether by mistake or by intent."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median_low

import torch
from torch import Tensor

from ..client.losses import forgets
from ..core import (
    Buffers,
    ClientId,
    Failure,
    Guarded,
    Jobs,
    Metrics,
    Phase,
    Reason,
    Replies,
    Request,
    Stage,
    State,
    Status,
    Vector,
    require,
    require_count,
    require_rate,
)
from ..maths import orthogonal_direction
from ..measures.metrics import metric

NEGLIGIBLE = 1e-6
"""An update of a retained client below this share of the median norm is none."""
HARMLESS = 0.01
"""Of the model's length: no update below is too long."""
LARGER = 5.0
"""How many times as long as that of the median an update may be because its client holds more data."""
COPY = 0.95
"""Cosine with an update that forgets, up to which ordinary training is no copy."""
VETO = 7.0
"""By how much the sine between an update that forgets and those of the others grows without a copy of it."""
IN_A_ROW = 3
"""Steps of post-training that are left out before it ends."""
FLOOR = 0.1
"""R-Acc that retained clients may lose in a request, unless the caller says otherwise."""
REMEMBERED = 10_000
"""Number of earlier updates that are remembered by their digests."""
CHANCE = 0.05
"""An ASR up to which a backdoor does not work; retrained models reach as much."""
LEFT = 0.1
"""The share of an ASR that may be left."""
MOVED = 0.1
"""The share by which a loss of the targets must change in unlearning."""
UNTRIED = (
    "no retained client reports a loss, so no step is tried before it is taken: let clients measure their "
    "training loss, or pass Guards(utility=False)"
)
UNMEASURED = "nothing is measured of the targets, so nobody knows whether they are forgotten"


@dataclass(frozen=True)
class Guards:
    """What the driver holds against clients that cheat or fail; lengths are Euclidean norms."""

    norm: float = 10.0
    """A retained client's update may be this many times as long as the median of the exchange, and longer
    where it holds more data, else it is refused and counts as missing."""
    target_norm: float = 2.0
    """A target's update is shortened to this many times the median of the retained clients."""
    amplification: float = 10.0
    """A step that a method has lengthened more than this is shortened to it."""
    step: float = 0.1
    """A longer step of unlearning, as a share of the model's length, is shortened to it."""
    budget: float = 1.0
    """The steps of unlearning together may be this many times as long as ω⁰; then unlearning ends."""
    utility: bool = True
    """Ask all retained clients, before a step is taken, for their training loss with it: one exchange more
    in every round, which sends the model but trains nothing."""
    harm: float = 1.0
    """A retained client's training loss may rise by this share, or by this number where it is below 1, above
    that of ω⁰ or of the model that the phase began with, whichever is larger."""
    halvings: int = 4
    """A step that would harm a retained client more is halved this often, then left out."""

    def __post_init__(self) -> None:
        for name in ("norm", "target_norm", "amplification", "step", "budget", "harm"):
            require_rate(name, getattr(self, name))
        for name in ("norm", "amplification"):
            value = getattr(self, name)
            require(value >= 1, name, value, "1 or more")
        require_count("halvings", self.halvings)
        require(isinstance(self.utility, bool), "utility", self.utility, "true or false")


@dataclass
class Watch:
    """The guards in one round: they refuse, shorten and take notes."""

    guards: Guards
    request: Request
    guarded: Guarded
    updates: Mapping[ClientId, Vector] = field(default_factory=dict)
    """Of the last exchange, as far as they are used."""

    def note(self, code: str, event: str = "") -> None:
        """Counts a code, and the sentence with which the outcome is to tell what happened."""
        codes, events = self.guarded.codes, self.guarded.events
        codes = {**codes, code: codes.get(code, 0) + 1}
        if event:
            events = {**events, event: events.get(event, 0) + 1}
        self.guarded = replace(self.guarded, codes=codes, events=events)

    def screen(self, jobs: Jobs, replies: Replies) -> Replies:
        """The updates that may be used: none too long, none used before, none copied; targets shortened.

        A rule that half of the retained clients break, or more, tells nothing about any of them.
        """
        moved = {client: r.displacement for client, r in replies.items() if r.displacement is not None}
        norms = {client: _norm(update) for client, update in moved.items()}
        self.updates = moved
        retained = [client for client in self.request.retained if client in norms]
        typical = median_low(norms[client] for client in retained) if retained else 0.0
        for reason in (failure.reason for failure in replies.missing.values()):
            if reason.refusal:
                self.note(f"refused:{reason}")
        refused: dict[ClientId, Failure] = {}
        for rule in (
            self._used_before(jobs, norms),
            self._too_long(replies, norms, retained, typical),
            self._copies(jobs, retained),
        ):
            few = 2 * len(rule.keys() & {*retained}) < len(retained)
            both = {**refused, **(rule if few else {c: f for c, f in rule.items() if c not in retained})}
            if 2 * len(both.keys() & {*retained}) <= len(retained):
                refused = both
        for failure in refused.values():
            self.note(f"refused:{failure.reason}")
        accepted = {client: reply for client, reply in replies.items() if client not in refused}
        for client in sorted(accepted.keys() & {*self.request.targets} & moved.keys()):
            if 0 < self.guards.target_norm * typical < norms[client]:
                share = self.guards.target_norm * typical / norms[client]
                accepted[client] = replace(replies[client], displacement=moved[client] * share)
                self.note(
                    "shortened",
                    f"the update of {client} was shortened to {self.guards.target_norm:g} times the median "
                    "of the retained clients",
                )
        self.updates = {client: moved[client] for client in moved if client in accepted}
        return Replies(accepted, {**replies.missing, **refused})

    def _used_before(self, jobs: Jobs, norms: Mapping[ClientId, float]) -> dict[ClientId, Failure]:
        """Updates that are those of another client, or that were sent for another model; others are noted."""
        found, seen = dict[ClientId, Failure](), dict(self.guarded.seen)
        for client in sorted(norms, key=lambda client: (client not in self.request.targets, client)):
            if not norms[client]:
                continue
            now = client, _digest(jobs[client].params)
            whose, model = seen.setdefault(_digest(self.updates[client]), now)
            if whose != client:
                found[client] = Failure(Reason.COPY, f"sent exactly the update of {whose}")
            elif model != now[1]:
                found[client] = Failure(Reason.REPLAY, "sent again what it sent for another model")
        self.guarded = replace(self.guarded, seen=dict(list(seen.items())[-REMEMBERED:]))
        return found

    def _too_long(
        self, replies: Replies, norms: Mapping[ClientId, float], retained: Sequence[ClientId], typical: float
    ) -> dict[ClientId, Failure]:
        """Updates that are longer than their client's data and the model explain; zeros are noted."""
        found: dict[ClientId, Failure] = {}
        if not typical:
            return found
        shortest = HARMLESS * _norm(self.request.params)
        usual = median_low(replies[client].examples for client in retained)
        for client in retained:
            larger = min(max(1.0, replies[client].examples / usual), LARGER)
            if norms[client] > max(self.guards.norm * larger * typical, shortest):
                found[client] = Failure(
                    Reason.NORM, f"sent an update more than {self.guards.norm:g} times as long as the median"
                )
            elif norms[client] < NEGLIGIBLE * typical:
                self.note("idle", f"{client} sent an update that is practically zero")
        return found

    def _copies(self, jobs: Jobs, retained: Sequence[ClientId]) -> dict[ClientId, Failure]:
        """Ordinary training without which there would be far more room to forget than with it.

        As the model unlearns, honest training of clients with the target's distribution becomes its opposite:
        that counts only at ω⁰, where there is nothing to undo, and of those who were found out there.
        """
        learning = [client for client in retained if not forgets(jobs[client])]
        found: dict[ClientId, Failure] = {}
        for target in self.request.targets:
            if target not in self.updates or not forgets(jobs[target]) or len(learning) < 2:
                continue
            forget, first = self.updates[target], torch.equal(jobs[target].params, self.request.params)
            cosines = {
                client: abs(cosine) if first or Reason.COPY in self.guarded.lost.get(client, {}) else cosine
                for client in learning
                for cosine in [_cosine(self.updates[client], forget)]
            }
            closest = max(learning, key=lambda client: cosines[client])
            rest = [client for client in learning if client != closest]
            if cosines[closest] > COPY and self._room(forget, rest) > VETO * self._room(forget, learning):
                told = f"sent an update much like that of {target}, or like its opposite"
                found[closest] = Failure(Reason.COPY, told)
        return found

    def _room(self, forget: Vector, clients: Iterable[ClientId]) -> float:
        """The sine between an update that forgets and the span of those of clients."""
        rest = torch.stack([self.updates[client] for client in clients])
        return orthogonal_direction(forget, rest).sine

    def shortened(self, phase: Phase, before: State, origin: Vector, after: State) -> State:
        """The step, no longer than the caps allow."""
        length, share = _norm(after.params - origin), 1.0
        lengthened = float(after.diagnostics.get("amplification", 0.0))
        if lengthened > self.guards.amplification:
            share = self.guards.amplification / lengthened
            self.note(
                "cut:amplification",
                f"a step was lengthened more than {self.guards.amplification:g} times, and cut to that"
                f"{self._closest()}",
            )
        longest = self.guards.step * _norm(origin)
        if phase.stage is Stage.UNLEARNING and share * length > longest > 0:
            share = longest / length
            self.note(
                "cut:step",
                f"a step of unlearning was longer than {self.guards.step:.0%} of the model, and cut",
            )
        return after if share == 1 else part(before, origin, after, share)

    def _closest(self) -> str:
        """Names the retained client without which there would be far more room to forget, if there is one."""
        targets = [self.updates[target] for target in self.request.targets if target in self.updates]
        others = [client for client in self.request.retained if client in self.updates]
        if not targets or len(others) < 2:
            return ""
        forget = torch.stack(targets).mean(0)
        rooms = {one: self._room(forget, [c for c in others if c != one]) for one in others}
        most = max(rooms, key=lambda client: rooms[client])
        alone = rooms[most] > VETO * self._room(forget, others)
        return f"; without {most} there would be most room" if alone else ""

    def spend(self, phase: Phase, origin: Vector, after: State) -> bool:
        """Books a step that is taken; false where the budget of unlearning is used up."""
        if phase.stage is not Stage.UNLEARNING:
            self.guarded = replace(self.guarded, left_out=0)
            return True
        spent = self.guarded.spent + _norm(after.params - origin)
        if spent > self.guards.budget * _norm(self.request.params):
            return False
        self.guarded = replace(self.guarded, spent=spent)
        return True

    def begin(self, losses: Mapping[ClientId, float]) -> None:
        """Takes the losses that a phase begins with for those that later ones are compared with."""
        first = {**losses, **self.guarded.original}
        reference = {client: max(loss, first[client]) for client, loss in losses.items()}
        self.guarded = replace(self.guarded, original=first, reference=reference)
        if not any(map(math.isfinite, first.values())) and UNTRIED not in self.guarded.events:
            self.note("untried", UNTRIED)

    @property
    def tries(self) -> bool:
        """Whether steps are tried: retained clients report losses, or have not been asked yet."""
        known = self.guarded.original
        return self.guards.utility and (not known or any(map(math.isfinite, known.values())))

    def leave_out(self, phase: Phase, before: State, code: str, why: str) -> State:
        """The state before a step that cannot be admitted; unlearning ends with it, other phases later."""
        left_out = self.guarded.left_out + 1
        if phase.stage is not Stage.UNLEARNING and left_out < IN_A_ROW:
            self.note("left_out", f"a step of {phase.stage} was left out: it would have harmed someone")
            self.guarded = replace(self.guarded, left_out=left_out)
            return replace(before, round=before.round + 1, diagnostics={})
        where = f"{phase.stage} ended in round {before.round + 1} of {phase.rounds}"
        told = f"{where}: the next step {why}"
        self.note(f"stopped:{code}")
        stopped = "; ".join(filter(None, (self.guarded.stopped, told)))
        self.guarded = replace(self.guarded, stopped=stopped, left_out=0)
        return replace(before, diagnostics={}).halt(Status.DONE, told)

    def harmed(self, losses: Mapping[ClientId, float]) -> dict[ClientId, tuple[float, float]]:
        """The clients that a step would harm: the loss that they have with it, and the largest admitted."""
        limits = {
            client: reference + self.guards.harm * max(1.0, reference)
            for client, reference in self.guarded.reference.items()
        }
        return {
            client: (losses[client], limits[client])
            for client in sorted(limits.keys() & losses.keys())
            if not losses[client] <= limits[client]
        }


def part(before: State, origin: Vector, after: State, share: float) -> State:
    """A share of a step: of the model, and of the vectors and buffers that go with it."""
    return replace(
        after,
        params=origin + share * (after.params - origin),
        memory=_between(before.memory, after.memory, share),
        buffers=_between(before.buffers, after.buffers, share),
    )


def _between(before: Mapping[str, Tensor], after: Buffers, share: float) -> dict[str, Tensor]:
    def mixed(name: str, value: Tensor) -> Tensor:
        old = before.get(name)
        if old is None or old.shape != value.shape or not value.is_floating_point():
            return value
        # Where both are infinite, as in masks of attention, their difference is not a number.
        return torch.where(old == value, value, old + share * (value - old))

    return {name: mixed(name, value) for name, value in after.items()}


def starting(metrics: Metrics) -> dict[str, float]:
    """The measures of the targets and of the retained clients that a later model is compared with."""
    keys = ("asr", "loss_target", "train_loss_target", "loss_retained", "train_loss_retained")
    return {
        key: float(value) for key, value in metrics.items() if key in keys or key.split(" ")[0] == "r_acc"
    }


def worse(guarded: Guarded, metrics: Metrics, floor: float, new: bool = False) -> tuple[str, bool]:
    """What the retained clients lose by a model, if much, and whether it is more than the floor."""
    first = guarded.started
    if "r_acc" in first and "r_acc" in metrics:
        now, before = float(metrics["r_acc"]), first["r_acc"]
        lost, told = before - now, f"R-Acc {now:.3f}, before {before:.3f}"
        much, most = min(0.03, floor), floor
    elif first.get("loss_retained", 0) > 0 and "loss_retained" in metrics:
        now, before = float(metrics["loss_retained"]), first["loss_retained"]
        lost, told = (now - before) / max(1.0, before), f"a mean loss of {now:.3g}, before {before:.3g}"
        much, most = 0.1, 0.5
    else:
        return "", False
    if lost <= much + 1e-9:
        return "", False
    remedy = "take more rounds after unlearning, a lower rate in it, or a method that retrains"
    if new:
        remedy = "train the new model for more rounds, or at another rate"
    if harmed := lost > most + 1e-9:
        remedy += ", or allow it by another floor"
    return f"the retained clients are worse off than before ({told}): {remedy}", harmed


def stopped_badly(guarded: Guarded, metrics: Metrics, floor: float) -> str:
    """Why a run of which guards ended a phase ends badly; empty if it does not."""
    if guarded.unmoved and guarded.unmoved != UNMEASURED:
        return guarded.unmoved
    told, harmed = worse(guarded, metrics, floor)
    if harmed:
        return told
    for key, before in guarded.started.items():
        if key.startswith("r_acc ") and float(metrics.get(key, before)) < before - 3 * floor:
            return f"{key[6:]} ends with an accuracy of {float(metrics[key]):.3f}, before {before:.3f}"
    return ""


def unmoved(guarded: Guarded, metrics: Metrics, stage: Stage) -> str | None:
    """Why the targets do not look forgotten although a phase has ended; empty if they do, None if unknown.

    Their losses tell something only where forgetting depends on what they do.
    """
    started, now = guarded.started, starting(metrics)
    if "asr" in started and "asr" in now and max(started["asr"], now["asr"]) > CHANCE:
        if now["asr"] <= max(started["asr"] / 2, CHANCE):
            return ""
        return f"the targets' backdoor still works after {stage}: {_asr(started, now)}"
    if stage is not Stage.UNLEARNING or not guarded.helped:
        return None
    if "loss_target" in started and "loss_target" in now:
        if now["loss_target"] >= (1 + MOVED) * started["loss_target"]:
            return ""
        return (
            "the loss on the data to be forgotten has hardly risen in unlearning: "
            f"{now['loss_target']:.3g}, before {started['loss_target']:.3g}"
        )
    if "train_loss_target" in started and "train_loss_target" in now:
        first = started["train_loss_target"]
        if now["train_loss_target"] <= first - MOVED * abs(first):
            return ""
        return (
            "the targets' own unlearning loss has hardly fallen in unlearning: "
            f"{now['train_loss_target']:.3g}, in the first round {first:.3g}"
        )
    return UNMEASURED


def left_over(guarded: Guarded, metrics: Metrics) -> str:
    """The part of a backdoor that is left in the final model, where a retrained one would hardly have it."""
    started, now = guarded.started, starting(metrics)
    if "asr" not in now or guarded.unmoved or not LEFT * started.get("asr", 0) < now["asr"] > 2 * CHANCE:
        return ""
    return (
        f"a part of the targets' backdoor still works: {_asr(started, now)}; use a method that retrains, or "
        "more rounds of unlearning"
    )


def _asr(started: Mapping[str, float], now: Mapping[str, float]) -> str:
    told = [metric("asr").text(value["asr"]) for value in (now, started)]
    return f"ASR {told[0]}, before {told[1]}"


def book(guarded: Guarded, asked: Iterable[ClientId], lost: Mapping[ClientId, Failure]) -> Guarded:
    """Takes down who had work in a round, and whose could not be used."""
    rounds, found = dict(guarded.asked), dict(guarded.lost)
    for client in {*asked, *lost}:
        rounds[client] = rounds.get(client, 0) + 1
    for client, failure in lost.items():
        held = found.get(client, {})
        count, _ = held.get(failure.reason, (0, ""))
        found[client] = {**held, str(failure.reason): (count + 1, failure.detail)}
    return replace(guarded, asked=rounds, lost=found)


def warnings(guarded: Guarded) -> tuple[str, ...]:
    """What a run's outcome is to tell, in sentences: clients first, targets that are not forgotten last."""
    left_out = [
        f"{client} was left out of {count} of {guarded.asked[client]} rounds: {detail}"
        for client, reasons in sorted(guarded.lost.items())
        for count, detail in reasons.values()
    ]
    events = [f"{event} ({count} times)" if count > 1 else event for event, count in guarded.events.items()]
    told = (guarded.stopped, guarded.worse, guarded.unmoved)
    return (*left_out, *events, *filter(None, told))


def counts(guarded: Guarded) -> dict[str, int]:
    """What the guards noted in a run, by codes that name nobody."""
    if not guarded.unmoved:
        return dict(guarded.codes)
    return {**guarded.codes, "unmeasured" if guarded.unmoved == UNMEASURED else "unmoved": 1}


def _norm(vector: Vector) -> float:
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))


def _cosine(one: Vector, other: Vector) -> float:
    lengths = _norm(one) * _norm(other)
    return float(one.double() @ other.double()) / lengths if lengths > 0 else 0.0


def _digest(vector: Vector) -> str:
    """Enough of the SHA-256 of a vector's bytes to tell vectors apart."""
    return hashlib.sha256(vector.contiguous().numpy().data).hexdigest()[:16]


def finite_losses(replies: Replies, asked: Jobs) -> dict[ClientId, float]:
    """The training losses that clients report; infinite for one that answers without a usable loss."""
    found: dict[ClientId, float] = {}
    for client, reply in replies.of(asked).items():
        means = reply.statistics.get("train") or reply.statistics.get("test") or {}
        found[client] = means["loss"].value if "loss" in means else math.inf
    return found
