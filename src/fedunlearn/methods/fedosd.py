"""FedOSD: federated unlearning with orthogonal steepest descent (Pan et al., AAAI 2025)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..core import ClientId, Job, Phase, Replies, Request, Stage, State, Status
from ..core.registry import method
from ..core.seeds import generator
from ..maths import Direction, DirectionStatus, orthogonal_direction, project_off
from ..objectives import require_loss
from .schedule import Schedule
from .targets import silent

PATIENCE = 3

Direct = Callable[[Tensor, Tensor, torch.Generator], Direction]
"""Finds a step from the targets' displacement, the retained clients', and random numbers if it wants any."""

Anchor = Literal["reverting", "always", "never"]


def steepest(forget: Tensor, retain: Tensor, draw: torch.Generator) -> Direction:
    """Eq. 6."""
    return orthogonal_direction(forget, retain)


@dataclass(frozen=True)
class ForgettingDescent(Phase):
    """Descends the targets' unlearning loss, orthogonally to every retained client (Alg. 1, lines 2-9)."""

    objective: str = "uce"
    direction: Direct = steepest

    stage: ClassVar[Stage] = Stage.UNLEARNING

    def ask(self, request: Request, state: State) -> Mapping[ClientId, Job]:
        return {
            client: Job(state.params, self.objective if client in request.targets else None)
            for client in request.clients
        }

    def tell(self, request: Request, state: State, replies: Replies) -> State:
        if lost := silent(request, state, replies):
            return lost
        retained = replies.of(request.retained)
        found = self.direction(
            replies.of(request.targets).mean(),
            retained.matrix(),
            generator(request.seed, "direction", state.round),
        )
        moved = state.step(
            found.vector,
            sine=found.sine,
            amplification=found.amplification,
            rank=found.rank,
            max_cosine=found.max_cosine,
            protected=0 if found.status is DirectionStatus.UNCONSTRAINED else len(retained) - found.dropped,
        )
        if found.status is DirectionStatus.ZERO_FORGET:
            return moved.halt(Status.CONVERGED, "the targets' unlearning gradient vanished")
        if found.status is not DirectionStatus.IN_SPAN:
            return moved.remember(stalled=torch.zeros((), dtype=torch.int64))
        stalled = state.memory.get("stalled", torch.zeros((), dtype=torch.int64)) + 1
        if stalled < PATIENCE:
            return moved.remember(stalled=stalled)
        return moved.halt(
            Status.NO_DIRECTION,
            f"for {PATIENCE} rounds no step could forget without harming a retained client "
            f"(sine {found.sine:.1e}): use a method that retrains",
        )


@dataclass(frozen=True)
class AnchoredAveraging(Phase):
    """Averages the retained clients, never moving back towards ω⁰ (Alg. 1, lines 11-23)."""

    anchor: Anchor = "reverting"

    stage: ClassVar[Stage] = Stage.POSTTRAINING

    def ask(self, request: Request, state: State) -> Mapping[ClientId, Job]:
        return {client: Job(state.params) for client in request.retained}

    def tell(self, request: Request, state: State, replies: Replies) -> State:
        if self.anchor == "never":
            return state.step(-replies.mean())
        away = state.params - request.params
        anchored = {
            client: replace(
                reply, displacement=project_off(reply.displacement, away, always=self.anchor == "always")
            )  # Eq. 7
            for client, reply in replies.items()
        }
        return state.step(-Replies(anchored).mean())


@method(
    "fedosd",
    paper="Pan et al., AAAI 2025",
    summary="orthogonal steepest descent on the unlearning loss, then anchored averaging",
    online="targets and retained, then retained",
)
def fedosd(schedule: Schedule, *, objective: str = "uce", anchor: Anchor = "reverting") -> tuple[Phase, ...]:
    """``anchor``: which post-training updates are projected, those that are ``reverting`` (the paper) or
    ``always`` all of them (its released code).

    ``objective`` is the targets' unlearning loss; another task than classification brings its own.
    """
    require_loss(objective)
    return (
        ForgettingDescent(schedule.unlearn_rounds, schedule.unlearn_lr, objective),
        AnchoredAveraging(schedule.recover_rounds, schedule.recover_lr, anchor),
    )
