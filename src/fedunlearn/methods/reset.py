"""Reset: start the first layer anew and retrain from there, warm (ours, not from a paper)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ..core import NOBODY, FedUnlearnError, Phase, Request, Role, Stage, State, require
from ..core.registry import did_you_mean, method
from .fast_retrain import MomentumAveraging
from .fedavg import Averaging
from .schedule import Schedule

SETTLING = 7
"""One in so many rounds after the reset is for the lower learning rate."""


@dataclass(frozen=True)
class LayerReset(Phase):
    """W ← a new initialisation in the named parameters; by default in all of the network's first layer."""

    layers: tuple[str, ...] = ()

    stage: ClassVar[Stage] = Stage.UNLEARNING
    needs: ClassVar[frozenset[str]] = frozenset({"fresh", "shapes"})
    asks: ClassVar[frozenset[Role]] = NOBODY

    def round(self, request: Request, state: State) -> State:
        assert request.fresh is not None
        fresh, params = request.fresh("reset"), state.params.clone()
        pieces, new = request.pieces(params), request.pieces(fresh.params)
        for name in self.layers or first_layer(request):
            if name not in pieces:
                raise FedUnlearnError(
                    f"the model has no parameter {name!r}{did_you_mean(name, pieces)}", code="unknown"
                )
            pieces[name].copy_(new[name])
        # The BatchNorm statistics in ω⁰ depend on the targets, and describe a layer that is gone.
        return replace(state.move_to(params), buffers=fresh.buffers)


def first_layer(request: Request) -> list[str]:
    """The parameters of the module that holds the network's first weight: weight, bias and gain."""
    names = list(request.shapes)
    weight = next((name for name, shape in request.shapes.items() if len(shape) > 1), names[0])
    module = weight.rpartition(".")[0]
    return [name for name in names if name.rpartition(".")[0] == module]


@method(
    "reset",
    paper="ours",
    source="ours",
    summary="initialises the first layer anew, then trains on without the targets: a warm retraining",
)
def reset(schedule: Schedule, *, layers: list[str] | None = None, momentum: float = 0.0) -> tuple[Phase, ...]:
    """``layers`` names the parameters to initialise anew.

    The reset is one round. Of the others, six in seven use the learning rate of pre-training and the last
    seventh that of recovery. With ``momentum``, they are those of ``fast-retrain``.
    """
    require(0 <= momentum < 1, "momentum", momentum, "at least 0 and below 1")
    once, rest = schedule.in_one_round
    settling = rest // SETTLING
    start = LayerReset(once, schedule.pretrain_lr, tuple(layers or ()))
    if momentum:
        return start, MomentumAveraging(rest, schedule.pretrain_lr, momentum=momentum)
    return (
        start,
        Averaging(rest - settling, schedule.pretrain_lr),
        Averaging(settling, schedule.recover_lr),
    )
