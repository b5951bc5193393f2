"""FedEraser: replay the training without the targets (Liu et al., IWQoS 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..core import ClientId, Job, Phase, Replies, Request, Stage, State, Status, Vector
from ..core.registry import method
from .schedule import Schedule, require


@dataclass(frozen=True)
class CalibratedReplay(Phase):
    """New directions from the retained clients, with the lengths that their updates once had.

    Of the recorded rounds as many are replayed, evenly spaced, as the phase has rounds.
    """

    effort: float = 1.0
    layerwise: bool = False

    stage: ClassVar[Stage] = Stage.POSTTRAINING
    needs: ClassVar[frozenset[str]] = frozenset({"norms"})

    def start(self, request: Request, state: State) -> State:
        # The statistics of BatchNorm in ω⁰ are the targets' as well.
        new = request.fresh("federaser").buffers if request.fresh else state.buffers
        return State(state.params, buffers=new)

    def ask(self, request: Request, state: State) -> Mapping[ClientId, Job]:
        begun = self._begun(request, state)
        return {client: Job(begun, effort=self.effort) for client in request.retained}

    def tell(self, request: Request, state: State, replies: Replies) -> State:
        recorded = min(len(request.recorded("norms", client)) for client in request.retained)
        replayed = state.round * max(recorded, self.rounds) // self.rounds
        calibrated = {
            client: replace(reply, displacement=scaled)
            for client, reply in replies.items()
            if (scaled := self._scaled(request, client, replayed, reply.displacement)) is not None
        }
        begun = self._begun(request, state)
        # Deviation: the paper prints another 1/(K-1) before this mean, which its text contradicts.
        moved = state.move_to(begun - Replies(calibrated).average() if calibrated else begun)
        if replayed + 1 >= recorded and state.round + 1 < self.rounds:
            return moved.halt(Status.CONVERGED, f"all {recorded} recorded rounds are replayed")
        return moved

    def _begun(self, request: Request, state: State) -> Vector:
        """The first round starts from the model that pre-training started from."""
        return state.params if state.round else request.history["norms"]

    def _scaled(self, request: Request, client: ClientId, round: int, fresh: Vector) -> Vector | None:
        """‖U_i‖ Û_i/‖Û_i‖, of the whole vector or of each tensor; None for a client that did not move."""
        old = request.recorded("norms", client)[round]
        if not self.layerwise:
            length = torch.linalg.vector_norm(fresh)
            return fresh * (torch.linalg.vector_norm(old) / length) if length > 0 and old.any() else None
        pieces: list[Tensor] = []
        for piece, norm in zip(request.pieces(fresh).values(), old, strict=True):
            length = torch.linalg.vector_norm(piece)
            pieces.append((piece * (norm / length) if length > 0 else piece).reshape(-1))
        return torch.cat(pieces) if old.any() else None


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
    return (CalibratedReplay(schedule.rounds, schedule.pretrain_lr, effort, layerwise),)
