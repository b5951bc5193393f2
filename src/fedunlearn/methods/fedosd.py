"""FedOSD: federated unlearning with orthogonal steepest descent (Pan et al., AAAI 2025)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..client.losses import require_unlearning_loss
from ..core import RETAINED, Phase, Replies, Request, Role, Round, Stage, State, Status, Vector, train
from ..core.registry import method
from ..core.seeds import generator
from ..maths import Direction, DirectionStatus, orthogonal_direction, project_off
from .schedule import Schedule

PATIENCE = 3

Direct = Callable[[Tensor, Tensor, torch.Generator], Direction]
"""Maps the displacements of the targets and of the retained clients to a step; may draw random numbers."""

Anchor = Literal["reverting", "always", "never"]


def steepest(forget: Tensor, retain: Tensor, draw: torch.Generator) -> Direction:
    """Eq. 6."""
    return orthogonal_direction(forget, retain)


@dataclass(frozen=True)
class ForgettingDescent(Phase):
    """Descends the targets' unlearning loss, orthogonally to every retained client (Alg. 1, lines 2-9)."""

    loss: str = "uce"
    direction: Direct = steepest

    stage: ClassVar[Stage] = Stage.UNLEARNING
    reveals: ClassVar[tuple[str, ...]] = (
        "all who train: that update in all but one dimension for each retained client, at most",
    )

    def round(self, request: Request, state: State) -> Round:
        replies = yield {target: train(state.params, self.loss) for target in request.targets} | {
            client: train(state.params) for client in request.asked
        }
        forget, retained = replies.every(request.targets).mean(), replies.some(request.asked)
        draw = generator(request.seed, "direction", state.round)
        found = self.direction(forget, retained.matrix(), draw)
        return self.moved(request, state, forget, retained, found)

    def moved(
        self, request: Request, state: State, forget: Vector, retained: Replies, found: Direction
    ) -> State:
        """The state after a step in the direction that was found."""
        moved = state.step(
            found.vector,
            **diagnostics(found),
            protected=0 if found.status is DirectionStatus.UNCONSTRAINED else len(retained) - found.dropped,
        )
        if found.status is DirectionStatus.ZERO_FORGET:
            return moved.halt(Status.CONVERGED, "the targets' unlearning gradient vanished")
        stalled = state.memory.get("stalled", torch.zeros((), dtype=torch.int64)) + 1
        if found.status is not DirectionStatus.IN_SPAN:
            stalled = torch.zeros_like(stalled)
        if stalled < PATIENCE:
            return moved.remember(stalled=stalled)
        return moved.halt(
            Status.NO_DIRECTION,
            f"for {PATIENCE} rounds no step could forget without harming a retained client "
            f"(sine {found.sine:.1e}): use a method that retrains",
        )


def diagnostics(found: Direction) -> dict[str, float]:
    """The metrics of a round's direction."""
    return {
        "sine": found.sine,
        "amplification": found.amplification,
        "rank": found.rank,
        "max_cosine": found.max_cosine,
    }


@dataclass(frozen=True)
class AnchoredAveraging(Phase):
    """Averages the retained clients, never moving back towards ω⁰ (Alg. 1, lines 11-23).

    The models of earlier requests are anchors too; without earlier requests this is the paper's phase.
    """

    anchor: Anchor = "reverting"

    stage: ClassVar[Stage] = Stage.POSTTRAINING
    asks: ClassVar[frozenset[Role]] = RETAINED

    def round(self, request: Request, state: State) -> Round:
        replies = (yield {client: train(state.params) for client in request.asked}).some(request.asked)
        if self.anchor == "never":
            return state.step(-replies.mean())
        away = torch.stack([state.params - anchor for anchor in (request.params, *request.anchors)])
        always = self.anchor == "always"
        anchored = replies.mean(lambda moved: project_off(moved, away, always=always))  # Eq. 7
        return state.step(-anchored)


@method(
    "fedosd",
    paper="Pan et al., AAAI 2025",
    source="paper and its code",
    summary="orthogonal steepest descent on the unlearning loss, then anchored averaging",
    clean_targets="left too much",
)
def fedosd(schedule: Schedule, *, objective: str = "uce", anchor: Anchor = "reverting") -> tuple[Phase, ...]:
    """``objective`` is the targets' unlearning loss. ``anchor`` selects the post-training updates to
    project: ``reverting`` ones (the paper), ``always`` (its released code), or ``never``."""
    require_unlearning_loss(objective)
    return (
        ForgettingDescent(schedule.unlearn_rounds, schedule.unlearn_lr, objective),
        AnchoredAveraging(schedule.recover_rounds, schedule.recover_lr, anchor),
    )
