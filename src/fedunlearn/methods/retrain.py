"""Retraining without the targets: the reference that unlearning is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core import Phase, Request, State, require
from ..core.registry import method
from .fedavg import Averaging
from .schedule import Schedule


@dataclass(frozen=True)
class FreshAveraging(Averaging):
    """Averaging from a new random model, initialised differently from the pre-trained one."""

    needs: ClassVar[frozenset[str]] = frozenset({"fresh"})

    def start(self, request: Request, state: State) -> State:
        assert request.fresh is not None
        return request.fresh("retrain")


@method("retrain", paper="-", summary="a new model from the retained clients alone", online="retained")
def retrain(schedule: Schedule, *, rounds: int | None = None) -> tuple[Phase, ...]:
    """``rounds`` replaces the schedule's total, because the paper's 200 under-train the reference."""
    require(rounds is None or rounds >= 1, "rounds", rounds, "1 or more")
    return (FreshAveraging(schedule.rounds if rounds is None else rounds, schedule.pretrain_lr),)
