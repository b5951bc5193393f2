"""Rapid retraining: a new model with a diagonal quasi-Newton step (Liu et al., INFOCOM 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..client.steps import Step
from ..core import Job, Phase, Vector, require
from ..core.registry import method, step
from .retrain import FreshAveraging
from .schedule import Schedule

MEMORY = (0.9, 0.999)
EPSILON = 1e-8


@step(
    "quasi_newton",
    summary="the mean gradient over the root of the diagonal Fisher information",
    part_of="rapid",
)
def quasi_newton(job: Job) -> Step:
    """η m̂/(√v̂ + ε), where m̂ and v̂ are running means.

    Deviation: the means restart in each local training, because clients keep no state between rounds.
    """
    means: list[Vector] = []
    steps = 0

    def rule(params: Vector, gradient: Vector, lr: float) -> Vector:
        nonlocal steps
        steps += 1
        means[:] = [
            mean.lerp(value, 1 - beta)
            for mean, value, beta in zip(
                means or [torch.zeros_like(gradient)] * 2, (gradient, gradient.square()), MEMORY, strict=True
            )
        ]
        first, second = (mean / (1 - beta**steps) for mean, beta in zip(means, MEMORY, strict=True))
        return lr * first / (second.sqrt() + EPSILON)

    return rule


@dataclass(frozen=True)
class RapidAveraging(FreshAveraging):
    """Retraining whose local steps are preconditioned."""

    step_rule: ClassVar[str] = "quasi_newton"


@method(
    "rapid",
    paper="Liu et al., INFOCOM 2022",
    source="summaries and public code",
    summary="a new model from the retained clients, with quasi-Newton steps",
)
def rapid(schedule: Schedule, *, lr: float = 0.001) -> tuple[Phase, ...]:
    """``lr`` is roughly the size of a local step in each parameter."""
    require(lr > 0, "lr", lr, "positive")
    return (RapidAveraging(schedule.rounds, lr),)
