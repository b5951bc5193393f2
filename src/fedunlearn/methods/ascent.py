"""Gradient ascent: the simplest way to forget, and a control for the methods that constrain it."""

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
    """The targets maximise their own loss, with the gradient of each step clipped."""

    clip: float = math.inf

    def job(self, request: Request, state: State) -> Job:
        return train(state.params, "ascent", "clipped", clip=self.clip)


@method(
    "ascent",
    paper="-",
    summary="control: unconstrained gradient ascent at the targets",
    kind="control",
)
def ascent(schedule: Schedule, *, clip: float = 5.0) -> tuple[Phase, ...]:
    """``clip`` bounds the norm of the gradient of each local step; the loss itself is unbounded."""
    require(clip > 0, "clip", clip, "positive")
    return (
        Ascent(schedule.unlearn_rounds, schedule.unlearn_lr, clip=clip),
        Averaging(schedule.recover_rounds, schedule.recover_lr),
    )
