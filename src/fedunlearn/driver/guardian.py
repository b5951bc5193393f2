"""The guardian: applies the guards to one round."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    Phase,
    Reason,
    Replies,
    Request,
    Stage,
    State,
    Status,
    Vector,
)
from ..maths import distance, orthogonal_direction
from .guards import Guards
from .sentences import SENTENCES, sentence

NEGLIGIBLE = 1e-6
"""An update of a retained client below this share of the median norm counts as zero."""
HARMLESS = 0.01
"""The share of the model's length below which no update is too long."""
LARGER = 5.0
"""The factor by which more data lets an update be longer than the median, at most."""
COPY = 0.95
"""The cosine with an update that forgets, up to which ordinary training is no copy."""
VETO = 7.0
"""The factor by which the sine between an update that forgets and the others grows without a copy of it."""
IN_A_ROW = 3
"""The steps of post-training that are left out in a row before it ends."""
REMEMBERED = 10_000
"""The number of earlier updates that are remembered by their digests."""

Losses = Callable[[State], dict[ClientId, float]]
"""Asks the retained clients that are present for their training losses with a model."""


@dataclass
class Guardian:
    """The guards in one round: they refuse and shorten updates, admit steps, and take notes."""

    guards: Guards
    request: Request
    guarded: Guarded
    updates: Mapping[ClientId, Vector] = field(default_factory=dict)
    """The updates of the last exchange that are used."""

    def note(self, code: str, **facts: object) -> None:
        """Count a code, and the sentence of the event if it has one."""
        codes, events = self.guarded.codes, self.guarded.events
        codes = {**codes, code: codes.get(code, 0) + 1}
        if code in SENTENCES:
            event = sentence(code, **facts)
            events = {**events, event: events.get(event, 0) + 1}
        self.guarded = replace(self.guarded, codes=codes, events=events)

    def screen(self, jobs: Jobs, replies: Replies) -> Replies:
        """Return the updates that may be used: none too long, repeated or copied; targets' are shortened.

        A rule that half of the retained clients break, or more, says nothing about any of them.
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
        longest = self.guards.target_norm * typical
        for client in sorted(accepted.keys() & {*self.request.targets} & moved.keys()):
            if 0 < longest < norms[client]:
                accepted[client] = replace(
                    replies[client], displacement=moved[client] * (longest / norms[client])
                )
                self.note("shortened", client=client, share=self.guards.target_norm)
        self.updates = {client: moved[client] for client in moved if client in accepted}
        return Replies(accepted, {**replies.missing, **refused})

    def _used_before(self, jobs: Jobs, norms: Mapping[ClientId, float]) -> dict[ClientId, Failure]:
        """Return updates of another client or for another model; remember the others."""
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
        """Return updates longer than their client's data and the model explain; note those near zero."""
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
                self.note("idle", client=client)
        return found

    def _copies(self, jobs: Jobs, retained: Sequence[ClientId]) -> dict[ClientId, Failure]:
        """Return ordinary training without which there would be far more room to forget than with it.

        As the model unlearns, honest training of clients with the target's distribution becomes its opposite:
        that counts only at ω⁰, where there is nothing to undo, and for clients that were found out there.
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
                detail = f"sent an update much like that of {target}, or like its opposite"
                found[closest] = Failure(Reason.COPY, detail)
        return found

    def _room(self, forget: Vector, clients: Iterable[ClientId]) -> float:
        """Return the sine between an update that forgets and the span of the clients' updates."""
        rest = torch.stack([self.updates[client] for client in clients])
        return orthogonal_direction(forget, rest).sine

    def admit(
        self, phase: Phase, before: State, origin: Vector, after: State, losses: Losses | None
    ) -> State:
        """Return the step as far as it is admitted, or the state before it if no part of it is.

        Without ``losses`` the step is not tried on the retained clients before it is taken.
        """
        if torch.equal(after.params, origin):
            return after
        proposed = self.shortened(phase, before, origin, after)
        if losses is not None and self._begun(before, origin, losses):
            for left in reversed(range(self.guards.halvings + 1)):
                harmed = self.harmed(losses(proposed))
                if not harmed:
                    break
                if not left:
                    return self._leave_out(phase, before, "harm", **self._worst(harmed))
                self.note("halved", stage=phase.stage, client=min(harmed))
                proposed = _part(before, origin, proposed, 0.5)
        if not self.spend(phase, origin, proposed):
            return self._leave_out(phase, before, "budget", budget=self.guards.budget)
        if proposed is after:
            return after
        share = distance(proposed.params, origin) / distance(after.params, origin)
        return replace(proposed, diagnostics={**proposed.diagnostics, "step_share": share})

    def shortened(self, phase: Phase, before: State, origin: Vector, after: State) -> State:
        """Return the step, no longer than the caps allow."""
        length, share = _norm(after.params - origin), 1.0
        limit = self.guards.amplification
        lengthened = float(after.diagnostics.get("amplification", 0.0))
        if lengthened > limit:
            share = limit / lengthened
            self.note("cut:amplification", limit=limit, closest=self._closest())
        longest = self.guards.step * _norm(origin)
        if phase.stage is Stage.UNLEARNING and share * length > longest > 0:
            share = longest / length
            self.note("cut:step", limit=self.guards.step)
        return after if share == 1 else _part(before, origin, after, share)

    def _closest(self) -> str:
        """Name the retained client without which there would be far more room to forget, if there is one."""
        targets = [self.updates[target] for target in self.request.targets if target in self.updates]
        others = [client for client in self.request.retained if client in self.updates]
        if not targets or len(others) < 2:
            return ""
        forget = torch.stack(targets).mean(0)
        rooms = {one: self._room(forget, [c for c in others if c != one]) for one in others}
        most = max(rooms, key=lambda client: rooms[client])
        alone = rooms[most] > VETO * self._room(forget, others)
        return sentence("closest", client=most) if alone else ""

    def _begun(self, before: State, origin: Vector, losses: Losses) -> bool:
        """Return whether clients report losses, and ask for those that the later ones are compared with."""
        new = not self.guarded.reference
        if self.tries and not self.guarded.original:
            self._begin(losses(replace(before, params=self.request.params, buffers=self.request.buffers)))
        if self.tries and new and not torch.equal(origin, self.request.params):
            self._begin(losses(replace(before, params=origin)))
        return self.tries

    def _begin(self, losses: Mapping[ClientId, float]) -> None:
        """Compare later losses with these, with which a phase begins."""
        first = {**losses, **self.guarded.original}
        reference = {client: max(loss, first[client]) for client, loss in losses.items()}
        self.guarded = replace(self.guarded, original=first, reference=reference)
        if not any(map(math.isfinite, first.values())) and "untried" not in self.guarded.codes:
            self.note("untried")

    @property
    def tries(self) -> bool:
        """Whether steps are tried: retained clients report losses, or have not been asked yet."""
        known = self.guarded.original
        return self.guards.utility and (not known or any(map(math.isfinite, known.values())))

    def harmed(self, losses: Mapping[ClientId, float]) -> dict[ClientId, tuple[float, float]]:
        """Return the clients that a step would harm: their loss with it, and the largest admitted."""
        limits = {
            client: reference + self.guards.harm * max(1.0, reference)
            for client, reference in self.guarded.reference.items()
        }
        return {
            client: (losses[client], limits[client])
            for client in sorted(limits.keys() & losses.keys())
            if not losses[client] <= limits[client]
        }

    def _worst(self, harmed: Mapping[ClientId, tuple[float, float]]) -> dict[str, object]:
        """Return the facts about a step that harms clients even at its shortest."""
        worst = max(harmed, key=lambda client: harmed[client][0] - harmed[client][1])
        loss, limit = harmed[worst]
        halvings = self.guards.halvings
        return {
            "clients": ", ".join(harmed),
            "halvings": halvings,
            "worst": worst,
            "loss": loss,
            "limit": limit,
        }

    def spend(self, phase: Phase, origin: Vector, after: State) -> bool:
        """Book a step that is taken; return false if the budget of unlearning is used up."""
        if phase.stage is not Stage.UNLEARNING:
            self.guarded = replace(self.guarded, left_out=0)
            return True
        spent = self.guarded.spent + _norm(after.params - origin)
        if spent > self.guards.budget * _norm(self.request.params):
            return False
        self.guarded = replace(self.guarded, spent=spent)
        return True

    def _leave_out(self, phase: Phase, before: State, code: str, **facts: object) -> State:
        """Return the state before a step that is not admitted: unlearning ends here, other phases later."""
        left_out = self.guarded.left_out + 1
        if phase.stage is not Stage.UNLEARNING and left_out < IN_A_ROW:
            self.note("left_out", stage=phase.stage)
            self.guarded = replace(self.guarded, left_out=left_out)
            return replace(before, round=before.round + 1, diagnostics={})
        why, round = sentence(code, **facts), before.round + 1
        reason = sentence("stopped", stage=phase.stage, round=round, rounds=phase.rounds, why=why)
        self.note(f"stopped:{code}")
        stopped = "; ".join(filter(None, (self.guarded.stopped, reason)))
        self.guarded = replace(self.guarded, stopped=stopped, left_out=0)
        return replace(before, diagnostics={}).halt(Status.DONE, reason)


def _part(before: State, origin: Vector, after: State, share: float) -> State:
    """Return a share of a step: of the model, and of the vectors and buffers that go with it."""
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
        # The difference of two infinities, as in masks of attention, is not a number.
        return torch.where(old == value, value, old + share * (value - old))

    return {name: mixed(name, value) for name, value in after.items()}


def _norm(vector: Vector) -> float:
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))


def _cosine(one: Vector, other: Vector) -> float:
    lengths = _norm(one) * _norm(other)
    return float(one.double() @ other.double()) / lengths if lengths > 0 else 0.0


def _digest(vector: Vector) -> str:
    """Return enough of the SHA-256 of a vector's bytes to distinguish vectors."""
    return hashlib.sha256(vector.contiguous().numpy().data).hexdigest()[:16]
