"""PUF: add the negated pseudo-gradients of the targets (Mora et al., arXiv 2504.05822)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from ..core import EVERYBODY, TARGETS, Phase, Request, Role, Round, Stage, State, train
from ..core.registry import method
from .fedavg import Averaging
from .schedule import Schedule


@dataclass(frozen=True)
class NegatedUpdate(Phase):
    """ω − s Σ U_u after ordinary training: of the targets alone, or weighted in a round of all clients."""

    scale: float
    within: Literal["special", "regular"] = "special"

    stage: ClassVar[Stage] = Stage.UNLEARNING

    @property
    def asks(self) -> frozenset[Role]:
        return TARGETS if self.within == "special" else EVERYBODY

    def round(self, request: Request, state: State) -> Round:
        asked = request.targets if self.within == "special" else (*request.targets, *request.asked)
        replies = yield {client: train(state.params) for client in asked}
        replies.every(request.targets)
        direction = torch.zeros_like(state.params)
        for (client, reply), share in zip(replies.items(), replies.weights(), strict=True):
            weight = 1.0 if self.within == "special" else share
            direction.add_(reply.moved, alpha=weight * (self.scale if client in request.targets else -1))
        length = torch.linalg.vector_norm(direction) / torch.linalg.vector_norm(state.params)
        return state.step(direction, relative_step=float(length))


@method(
    "puf",
    paper="Mora et al., arXiv 2504.05822",
    source="paper's code",
    summary="one ordinary round whose target updates are negated and scaled",
)
def puf(
    schedule: Schedule, *, round: Literal["special", "regular"] = "special", scale: float | None = None
) -> tuple[Phase, ...]:
    """A ``special`` round asks only the targets (scale 2), a ``regular`` one all clients (scale 20)."""
    once, rest = schedule.in_one_round
    chosen = (2.0 if round == "special" else 20.0) if scale is None else scale
    return (
        NegatedUpdate(once, schedule.unlearn_lr, chosen, round),
        Averaging(rest, schedule.recover_lr),
    )
