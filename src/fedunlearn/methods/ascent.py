"""Gradient ascent: the plainest way to forget, and a control for the methods that restrain it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import Phase, Request, State
from ..core.registry import method
from .fedavg import Averaging
from .schedule import Schedule, require
from .targets import TargetTraining


@dataclass(frozen=True)
class Ascent(TargetTraining):
    """The targets climb their own loss, with the gradient of each step clipped."""

    objective: str | None = "ascent"
    clip: float = math.inf

    def arrays(self, request: Request, state: State) -> Mapping[str, Tensor]:
        return {"clip": torch.tensor(self.clip)}


@method(
    "ascent",
    paper="-",
    summary="control: gradient ascent at the targets, nothing that restrains it",
    online="targets, then retained",
)
def ascent(schedule: Schedule, *, clip: float = 5.0) -> tuple[Phase, ...]:
    """``clip`` bounds the norm of the gradient of each local step; cross-entropy itself has no bound."""
    require(clip > 0, "clip", clip, "positive")
    return (
        Ascent(schedule.unlearn_rounds, schedule.unlearn_lr, clip=clip),
        Averaging(schedule.recover_rounds, schedule.recover_lr),
    )
