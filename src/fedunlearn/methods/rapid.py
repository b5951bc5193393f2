"""Rapid retraining: a new model with a diagonal quasi-Newton step (Liu et al., INFOCOM 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..core import ClientId, Job, Objective, Phase, Request, State, Vector
from ..core.registry import method
from ..objectives import Minimise, objective
from .retrain import FreshAveraging
from .schedule import Schedule, require

MEMORY = (0.9, 0.999)
EPSILON = 1e-8


@dataclass(frozen=True)
class QuasiNewton(Minimise):
    """η m̂/(√v̂ + ε): the mean gradient over the root of the diagonal Fisher, both as running means.

    Deviation: they begin anew in each local training, because clients keep nothing between rounds.
    """

    means: list[Tensor] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    def step(self, params: Vector, gradient: Vector, lr: float) -> Vector:
        self.means[:] = [
            mean.lerp(seen, 1 - beta)
            for mean, seen, beta in zip(
                self.means or [torch.zeros_like(gradient)] * 2,
                (gradient, gradient.square()),
                MEMORY,
                strict=True,
            )
        ]
        self.steps.append(1)
        first, second = (
            mean / (1 - beta ** len(self.steps)) for mean, beta in zip(self.means, MEMORY, strict=True)
        )
        return lr * first / (second.sqrt() + EPSILON)


@objective(
    "quasi_newton", summary="ordinary training on labels with a diagonal quasi-Newton step", part_of="rapid"
)
def _quasi_newton(arrays: Mapping[str, Tensor]) -> Objective:
    return QuasiNewton()


@dataclass(frozen=True)
class RapidAveraging(FreshAveraging):
    """Retraining whose local steps are preconditioned."""

    def ask(self, request: Request, state: State) -> Mapping[ClientId, Job]:
        return {c: replace(job, objective="quasi_newton") for c, job in super().ask(request, state).items()}


@method(
    "rapid",
    paper="Liu et al., INFOCOM 2022",
    summary="a new model from the retained clients, with quasi-Newton steps",
    online="retained",
)
def rapid(schedule: Schedule, *, lr: float = 0.001) -> tuple[Phase, ...]:
    """``lr`` is about the length of a local step in each parameter."""
    require(lr > 0, "lr", lr, "positive")
    return (RapidAveraging(schedule.rounds, lr),)
