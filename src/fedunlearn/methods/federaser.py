"""FedEraser: replay the training without the targets (Liu et al., IWQoS 2021)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..core import ClientId, Phase, Replies, Request, Round, Stage, State, Status, Vector, require, train
from ..core.registry import method
from .schedule import Schedule


@dataclass(frozen=True)
class CalibratedReplay(Phase):
    """New directions from the retained clients, with the lengths that their updates once had.

    The phase replays as many of the recorded rounds as it has rounds, evenly spaced.
    """

    effort: float = 1.0
    layerwise: bool = False

    stage: ClassVar[Stage] = Stage.POSTTRAINING
    needs: ClassVar[frozenset[str]] = frozenset({"norms"})

    def start(self, request: Request, state: State) -> State:
        # The statistics of BatchNorm in ω⁰ are the targets' as well.
        new = request.fresh("federaser").buffers if request.fresh else state.buffers
        return State(state.params, buffers=new)

    def round(self, request: Request, state: State) -> Round:
        # The first round starts from the model that pre-training started from.
        begun = state.params if state.round else request.history.shared["norms"]
        replies = yield {client: train(begun, effort=self.effort) for client in request.asked}
        recorded = min(len(request.history.of("norms", client)) for client in request.retained)
        replayed = state.round * max(recorded, self.rounds) // self.rounds
        calibrated = {
            client: replace(reply, displacement=scaled)
            for client, reply in replies.some(request.asked).items()
            if (scaled := self._scaled(request, client, replayed, reply.moved)) is not None
        }
        # Deviation: the paper prints another 1/(K-1) before this mean, which its text contradicts.
        moved = state.move_to(begun - Replies(calibrated).average() if calibrated else begun)
        if replayed + 1 >= recorded and state.round + 1 < self.rounds:
            return moved.halt(Status.CONVERGED, f"all {recorded} recorded rounds are replayed")
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
    """The same with the length of each parameter tensor."""

    layerwise: bool = True

    needs: ClassVar[frozenset[str]] = frozenset({"norms", "shapes"})


@method(
    "federaser",
    paper="Liu et al., IWQoS 2021",
    summary="replays the recorded rounds without the targets: new directions, old lengths",
    online="retained",
)
def federaser(schedule: Schedule, *, effort: float = 1.0, layerwise: bool = False) -> tuple[Phase, ...]:
    """``effort`` is the share of the local epochs spent on calibration (the paper's r);
    ``layerwise`` keeps the length of each parameter tensor, not of the whole update."""
    require(0 < effort <= 1, "effort", effort, "above 0 and at most 1")
    replay = LayerwiseReplay if layerwise else CalibratedReplay
    return (replay(schedule.rounds, schedule.pretrain_lr, effort),)
