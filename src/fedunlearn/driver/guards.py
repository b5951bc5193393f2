"""Guards: limits on what a single client can do to the model, whether by mistake or by intent."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
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
from ..measure.metrics import metric

NEGLIGIBLE = 1e-6
"""An update of a retained client below this share of the median norm is none."""
COPY = 0.95
"""Cosine with an update that forgets, of either sign, from which on ordinary training is taken for a copy."""
REMEMBERED = 10_000
"""Number of earlier updates that are remembered by their digests."""
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
    """A retained client's update may be this many times as long as the median of the exchange, else it is
    refused and counts as missing."""
    target_norm: float = 2.0
    """A target's update is shortened to this many times the median of the retained clients."""
    amplification: float = 10.0
    """A step that a method has lengthened more than this is shortened to it."""
    step: float = 0.1
    """A longer step of unlearning, as a share of the model's length, is shortened to it."""
    budget: float = 1.0
    """The steps of unlearning together may be this many times as long as ω⁰; then the run stops."""
    utility: bool = True
    """Ask all retained clients, before a step is taken, for their training loss with it: one exchange more
    in every round, which sends the model but trains nothing."""
    harm: float = 1.0
    """A retained client's training loss may rise by this share, or by this number where it is below 1, above
    that of ω⁰ or of the model that the phase began with, whichever is larger."""
    halvings: int = 4
    """A step that would harm a retained client more is halved this often, then the run stops."""

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
        """The updates that may be used: none too long, none used before, none copied; targets shortened."""
        moved = {client: r.displacement for client, r in replies.items() if r.displacement is not None}
        if not jobs.keys().isdisjoint(self.request.targets):
            self.guarded = replace(self.guarded, helped=True)
        norms = {client: _norm(update) for client, update in moved.items()}
        self.updates = moved
        retained = [norms[client] for client in self.request.retained if client in norms]
        typical = median_low(retained) if retained else 0.0
        accepted, refused, seen = dict(replies), dict(replies.missing), dict(self.guarded.seen)
        for reason in (failure.reason for failure in refused.values()):
            if reason.refusal:
                self.note(f"refused:{reason}")
        for client in sorted(moved, key=lambda client: (client not in self.request.targets, client)):
            failure = self._refusal(client, jobs, norms[client], typical, seen)
            if failure is not None:
                self.note(
                    f"refused:{failure.reason}",
                    f"an update of {client} was refused ({failure.reason}): it {failure.detail}",
                )
                refused[client] = failure
                del accepted[client]
            elif client in self.request.targets and 0 < self.guards.target_norm * typical < norms[client]:
                share = self.guards.target_norm * typical / norms[client]
                accepted[client] = replace(replies[client], displacement=moved[client] * share)
                self.note(
                    "shortened",
                    f"the update of {client} was shortened to {self.guards.target_norm:g} times the median "
                    "of the retained clients",
                )
        self.updates = {client: moved[client] for client in moved if client in accepted}
        self.guarded = replace(self.guarded, seen=dict(list(seen.items())[-REMEMBERED:]))
        return Replies(accepted, refused)

    def _refusal(
        self,
        client: ClientId,
        jobs: Jobs,
        norm: float,
        typical: float,
        seen: dict[str, tuple[ClientId, str]],
    ) -> Failure | None:
        """Why an update cannot be used, if so; one that can is remembered in ``seen``."""
        update = self.updates[client]
        digest, model = _digest(update), _digest(jobs[client].params)
        if norm > 0 and (before := seen.get(digest)) is not None:
            whose, when = before
            if whose != client:
                return Failure(Reason.COPY, f"sent exactly the update of {whose}")
            if when != model:
                return Failure(Reason.REPLAY, "sent again what it sent for another model")
        if client in self.request.retained and typical > 0:
            if norm > self.guards.norm * typical:
                return Failure(
                    Reason.NORM, f"sent an update more than {self.guards.norm:g} times as long as the median"
                )
            if norm < NEGLIGIBLE * typical:
                return Failure(Reason.NORM, "sent an update that is practically zero")
            if not forgets(jobs[client]):
                unlearned = [t for t in self.request.targets if t in self.updates and forgets(jobs[t])]
                for target in unlearned:
                    if abs(_cosine(update, self.updates[target])) > COPY:
                        return Failure(
                            Reason.COPY, f"sent an update much like that of {target}, or like its opposite"
                        )
        seen[digest] = client, model
        return None

    def shortened(self, phase: Phase, before: State, origin: Vector, after: State) -> State:
        """The step, no longer than the caps allow."""
        length, share = _norm(after.params - origin), 1.0
        lengthened = float(after.diagnostics.get("amplification", 0.0))
        if lengthened > self.guards.amplification:
            share = self.guards.amplification / lengthened
            self.note(
                "cut:amplification",
                f"a step was lengthened more than {self.guards.amplification:g} times, and cut to that; "
                f"without {self._closest()} there would be most room",
            )
        longest = self.guards.step * _norm(origin)
        if phase.stage is Stage.UNLEARNING and share * length > longest > 0:
            share = longest / length
            self.note(
                "cut:step",
                f"a step of unlearning was longer than {self.guards.step:.0%} of the model, and cut",
            )
        return after if share == 1 else part(before, origin, after, share)

    def _closest(self) -> ClientId:
        """The retained client without which the targets' updates would be furthest from those of the rest."""
        targets = [self.updates[target] for target in self.request.targets if target in self.updates]
        others = {client: self.updates[client] for client in self.request.retained if client in self.updates}
        if not targets or len(others) < 2:
            return next(iter(others), "nobody")
        forget = torch.stack(targets).mean(0)

        def room(left_out: ClientId) -> float:
            rest = torch.stack([update for client, update in others.items() if client != left_out])
            return orthogonal_direction(forget, rest).sine

        return max(others, key=room)

    def spend(self, phase: Phase, origin: Vector, after: State) -> bool:
        """Books a step of unlearning; false where the budget is used up."""
        if phase.stage is not Stage.UNLEARNING:
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

    def stop(self, phase: Phase, before: State, code: str, reason: str) -> State:
        """The state before a step that cannot be admitted, and the end of its phase."""
        self.note(f"stopped:{code}")
        if phase.stage is Stage.UNLEARNING:
            self.guarded = replace(self.guarded, stopped=reason)
        return replace(before, diagnostics={}).halt(Status.GUARD_STOP, reason)

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
    """The measures of the targets that a later model is compared with."""
    return {key: float(metrics[key]) for key in ("asr", "loss_target", "train_loss_target") if key in metrics}


def unmoved(guarded: Guarded, metrics: Metrics, stage: Stage) -> str | None:
    """Why the targets do not look forgotten although a phase has ended; empty if they do, None if unknown.

    Their losses tell something only where forgetting depends on what they do.
    """
    started, now = guarded.started, starting(metrics)
    if "asr" in started and "asr" in now:
        if now["asr"] <= started["asr"] / 2:
            return ""
        told = [metric("asr").text(value) for value in (now["asr"], started["asr"])]
        return f"the targets' backdoor still works after {stage}: ASR {told[0]}, before {told[1]}"
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


def warnings(guarded: Guarded) -> tuple[str, ...]:
    """What the guards noted in a run, in sentences."""
    events = [f"{event} ({count} times)" if count > 1 else event for event, count in guarded.events.items()]
    return (*events, guarded.unmoved) if guarded.unmoved else tuple(events)


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
