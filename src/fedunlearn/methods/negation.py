"""NoT: negate a layer's weights and continue training (Khalil et al., CVPR 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core import NOBODY, FedUnlearnError, Phase, Request, Role, Stage, State
from ..core.registry import did_you_mean, method
from .fedavg import Averaging
from .schedule import Schedule


@dataclass(frozen=True)
class WeightNegation(Phase):
    """W ← −W in the named parameters; by default in the first weight of the network."""

    layers: tuple[str, ...] = ()

    stage: ClassVar[Stage] = Stage.UNLEARNING
    needs: ClassVar[frozenset[str]] = frozenset({"shapes"})
    asks: ClassVar[frozenset[Role]] = NOBODY

    def round(self, request: Request, state: State) -> State:
        params = state.params.clone()
        pieces = request.pieces(params)
        weights = [name for name, piece in pieces.items() if piece.ndim > 1] or list(pieces)
        for name in self.layers or weights[:1]:
            if name not in pieces:
                raise FedUnlearnError(
                    f"the model has no parameter {name!r}{did_you_mean(name, pieces)}", code="unknown"
                )
            pieces[name].neg_()
        return state.move_to(params)


@method(
    "not",
    paper="Khalil et al., CVPR 2025",
    source="summaries and public code",
    summary="negates the first layer's weights, then continues training without the targets",
    clean_targets="forgot enough and harmed retained clients",
)
def negation(schedule: Schedule, *, layers: list[str] | None = None) -> tuple[Phase, ...]:
    """``layers`` names the parameters to negate; recovery uses the learning rate of pre-training."""
    once, rest = schedule.in_one_round
    return (
        WeightNegation(once, schedule.pretrain_lr, tuple(layers or ())),
        Averaging(rest, schedule.pretrain_lr),
    )
