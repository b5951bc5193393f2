"""FedOSD: federated unlearning with orthogonal steepest descent (Pan et al., AAAI 2025)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..maths import Direction, DirectionStatus, orthogonal_direction, project_off
from ..registry import method
from ..types import ClientId, FedUnlearnError, Job, Phase, Replies, Request, Stage, State, Status
from .schedule import Schedule

PATIENCE = 3


@dataclass(frozen=True)
class ForgettingDescent(Phase):
    """Descends the targets' unlearning loss, orthogonally to every retained client (Alg. 1, lines 2-9)."""

    objective: str = "uce"
    direction: Callable[[Tensor, Tensor], Direction] = orthogonal_direction

    stage: ClassVar[Stage] = Stage.UNLEARNING

    def start(self, request: Request, state: State) -> State:
        if not request.targets:
            raise FedUnlearnError("the request names no target, so there is nothing to unlearn: name one")
        return super().start(request, state)

    def ask(self, request: Request, state: State) -> Mapping[ClientId, Job]:
        return {
            client: Job(state.params, self.objective if client in request.targets else None)
            for client in request.clients
        }

    def tell(self, request: Request, state: State, replies: Replies) -> State:
        retained = replies.of(request.retained)
        missing = [target for target in request.targets if target not in replies]
        if missing or not retained:
            return state.halt(
                Status.MISSING_REPLY,
                f"{missing[0] if missing else 'every retained client'} failed to answer, "
                "and FedOSD cannot unlearn without it: bring it back and resume",
            )
        found = self.direction(replies.of(request.targets).mean(), retained.matrix())
        moved = state.step(
            found.vector,  # Eq. 6
            sine=found.sine,
            amplification=found.amplification,
            rank=found.rank,
            max_cosine=found.max_cosine,
            protected=len(retained) - found.dropped,
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
            f"for {PATIENCE} rounds the targets' gradient lay in the span of the retained clients' "
            f"(sine {found.sine:.1e}), so every step would harm one of them: "
            "use a method that retrains, or fewer retained clients per round",
        )


@dataclass(frozen=True)
class AnchoredAveraging(Phase):
    """Averages the retained clients, never moving back towards ω⁰ (Alg. 1, lines 11-23)."""

    always: bool = False

    stage: ClassVar[Stage] = Stage.POSTTRAINING

    def ask(self, request: Request, state: State) -> Mapping[ClientId, Job]:
        return {client: Job(state.params) for client in request.retained}

    def tell(self, request: Request, state: State, replies: Replies) -> State:
        away = state.params - request.params
        anchored = {
            client: replace(
                reply, displacement=project_off(reply.displacement, away, always=self.always)
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
def fedosd(schedule: Schedule, *, objective: str = "uce", always: bool = False) -> tuple[Phase, ...]:
    """``always`` projects every post-training update, as the released code does, not only reverting ones.

    ``objective`` is the targets' unlearning loss; another task than classification brings its own.
    """
    return (
        ForgettingDescent(schedule.unlearn_rounds, schedule.unlearn_lr, objective),
        AnchoredAveraging(schedule.recover_rounds, schedule.recover_lr, always),
    )
