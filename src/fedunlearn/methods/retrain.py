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

    purpose: str = "retrain"

    needs: ClassVar[frozenset[str]] = frozenset({"fresh"})

    def start(self, request: Request, state: State) -> State:
        assert request.fresh is not None
        return request.fresh(self.purpose)


@method("retrain", paper="-", summary="a new model from the retained clients alone")
def retrain(schedule: Schedule, *, rounds: int | None = None, number: int = 1) -> tuple[Phase, ...]:
    """``rounds`` replaces the schedule's total, because the paper's 200 under-train the reference.

    Another ``number`` starts from another new model: how far two retrainings differ is chance.
    """
    require(rounds is None or rounds >= 1, "rounds", rounds, "1 or more")
    require(number >= 1, "number", number, "1 or more")
    purpose = "retrain" if number == 1 else f"retrain {number}"
    total = schedule.rounds if rounds is None else rounds
    return (FreshAveraging(total, schedule.pretrain_lr, purpose=purpose),)
