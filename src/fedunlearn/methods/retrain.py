"""Retraining without the targets: the reference that unlearning is measured against."""

from __future__ import annotations

from dataclasses import dataclass

from ..core import FedUnlearnError, Phase, Request, State
from ..core.registry import method
from .fedavg import Averaging
from .schedule import Schedule, require


@dataclass(frozen=True)
class FreshAveraging(Averaging):
    """Averaging from a new random model, initialised unlike the pre-training's."""

    def start(self, request: Request, state: State) -> State:
        if request.fresh is None:
            raise FedUnlearnError("retraining needs new models: give the request a function `fresh`")
        return request.fresh("retrain")


@method("retrain", paper="-", summary="a new model from the retained clients alone", online="retained")
def retrain(schedule: Schedule, *, rounds: int | None = None) -> tuple[Phase, ...]:
    """``rounds`` replaces the schedule's total: the paper's 200 leave the reference under-trained."""
    require(rounds is None or rounds >= 1, "rounds", rounds, "1 or more")
    return (FreshAveraging(schedule.rounds if rounds is None else rounds, schedule.pretrain_lr),)
