"""Gradient ascent: the plainest way to forget, and a control for the methods that restrain it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..core import Job, Phase, Request, State, require, train
from ..core.registry import method
from .fedavg import Averaging
from .schedule import Schedule
from .targets import TargetTraining


@dataclass(frozen=True)
class Ascent(TargetTraining):
    """The targets climb their own loss, with the gradient of each step clipped."""

    clip: float = math.inf

    def job(self, request: Request, state: State) -> Job:
        return train(state.params, "ascent", "clipped", clip=self.clip)


@method(
    "ascent",
    paper="-",
    summary="control: gradient ascent at the targets, nothing that restrains it",
    online="targets, then retained",
)
def ascent(schedule: Schedule, *, clip: float = 5.0) -> tuple[Phase, ...]:
    """``clip`` bounds the norm of the gradient of each local step; the loss itself has no bound."""
    require(clip > 0, "clip", clip, "positive")
    return (
        Ascent(schedule.unlearn_rounds, schedule.unlearn_lr, clip=clip),
        Averaging(schedule.recover_rounds, schedule.recover_lr),
    )
