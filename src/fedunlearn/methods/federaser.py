"""FedEraser: replay the training without the targets (Liu et al., IWQoS 2021)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..core import (
    RETAINED,
    ClientId,
    Phase,
    Replies,
    Request,
    Role,
    Round,
    Stage,
    State,
    Status,
    Vector,
    require,
    train,
)
from ..core.registry import method
from .schedule import Schedule


@dataclass(frozen=True)
class CalibratedReplay(Phase):
    """New directions from the retained clients, scaled to the recorded norms of their updates.

    A phase of N rounds replays N of the recorded rounds, evenly spaced.
    """

    effort: float = 1.0
    layerwise: bool = False

    stage: ClassVar[Stage] = Stage.POSTTRAINING
    needs: ClassVar[frozenset[str]] = frozenset({"norms"})
    asks: ClassVar[frozenset[Role]] = RETAINED

    def start(self, request: Request, state: State) -> State:
        # The BatchNorm statistics in ω⁰ depend on the targets too.
        new = request.fresh("federaser").buffers if request.fresh else state.buffers
        return State(state.params, buffers=new)

    def origin(self, request: Request, state: State) -> Vector:
        """In the first round, the model that pre-training started from."""
        return state.params if state.round else request.history.shared["norms"]

    def round(self, request: Request, state: State) -> Round:
        start = self.origin(request, state)
        replies = yield {client: train(start, effort=self.effort) for client in request.asked}
        recorded = min(len(request.history.of("norms", client)) for client in request.retained)
        replayed = state.round * max(recorded, self.rounds) // self.rounds
        calibrated = {
            client: replace(reply, displacement=scaled)
            for client, reply in replies.some(request.asked).items()
            if (scaled := self._scaled(request, client, replayed, reply.moved)) is not None
        }
        # Deviation: the paper's formula has another factor 1/(K-1), which its text contradicts.
        moved = state.move_to(start - Replies(calibrated).average() if calibrated else start)
        if replayed + 1 >= recorded and state.round + 1 < self.rounds:
            return moved.halt(Status.CONVERGED, f"all {recorded} recorded rounds have been replayed")
        return moved

    def _scaled(self, request: Request, client: ClientId, round: int, fresh: Vector) -> Vector | None:
        """‖U_i‖ Û_i/‖Û_i‖, of the whole vector or of each tensor; None for a client that did not move."""
        old = request.history.of("norms", client)[round]
        if not self.layerwise:
            length = torch.linalg.vector_norm(fresh)
            return fresh * (torch.linalg.vector_norm(old) / length) if length > 0 and old.any() else None
        pieces: list[Tensor] = []
        for piece, norm in zip(request.pieces(fresh).values(), old, strict=True):
            length = torch.linalg.vector_norm(piece)
            pieces.append((piece * (norm / length) if length > 0 else piece).reshape(-1))
        return torch.cat(pieces) if old.any() else None


@dataclass(frozen=True)
class LayerwiseReplay(CalibratedReplay):
    """The same, with a norm for each parameter tensor."""

    layerwise: bool = True

    needs: ClassVar[frozenset[str]] = frozenset({"norms", "shapes"})


@method(
    "federaser",
    paper="Liu et al., IWQoS 2021",
    source="summaries and public code",
    summary="replays the recorded rounds without the targets: new directions, recorded norms",
    clean_targets="forgot enough and harmed retained clients",
)
def federaser(schedule: Schedule, *, effort: float = 1.0, layerwise: bool = False) -> tuple[Phase, ...]:
    """``effort`` is the share of the local epochs spent on calibration (the paper's r);
    ``layerwise`` keeps the norm of each parameter tensor instead of that of the whole update."""
    require(0 < effort <= 1, "effort", effort, "above 0 and at most 1")
    replay = LayerwiseReplay if layerwise else CalibratedReplay
    return (replay(schedule.rounds, schedule.pretrain_lr, effort),)
