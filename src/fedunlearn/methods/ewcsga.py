"""EWCSGA: gradient ascent held back by elastic weight consolidation (Wu et al., IEEE Network 2022).

How the Fisher diagonal is taken is in ``uploads.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..core import ClientId, Job, Objective, Phase, Replies, Request, Stage, State, Vector
from ..core.registry import method
from ..objectives import Ascend, objective
from .ascent import Ascent
from .fedavg import Averaging
from .schedule import Schedule, require
from .targets import absent


@dataclass(frozen=True, kw_only=True)
class ElasticAscend(Ascend):
    """−CE + λ/2 Σ F_k (ω_k − ω⁰_k)².

    The sign is that of the paper's text: its formula, ascended literally, would maximise the penalty.
    Deviation: λ F_k is capped at 1/η, where one step leads back to ω⁰ and any more would overshoot.
    """

    anchor: Tensor
    stiffness: Tensor

    def step(self, params: Vector, gradient: Vector, lr: float) -> Vector:
        pull = self.stiffness.clamp(max=1 / lr) * (params - self.anchor)
        return super().step(params, gradient, lr) + lr * pull


@objective(
    "elastic_ascent", summary="gradient ascent with a spring to an anchor in each parameter", part_of="ewcsga"
)
def _elastic_ascent(arrays: Mapping[str, Tensor]) -> Objective:
    return ElasticAscend(
        clip=float(arrays["clip"]), anchor=arrays["anchor"], stiffness=arrays["penalty"] * arrays["fisher"]
    )


@dataclass(frozen=True)
class ImportanceEstimate(Phase):
    """Asks once how much each parameter matters, at ω⁰."""

    whose: Literal["target", "retained"] = "target"

    stage: ClassVar[Stage] = Stage.UNLEARNING

    def ask(self, request: Request, state: State) -> Mapping[ClientId, Job]:
        asked = request.targets if self.whose == "target" else request.retained
        return {client: Job(state.params, "fisher", effort=0) for client in asked}

    def tell(self, request: Request, state: State, replies: Replies) -> State:
        if self.whose == "target" and (lost := absent(request, state, replies)):
            return lost
        parts = zip(replies.values(), replies.weights(), strict=True)
        return state.remember(
            fisher=sum(
                (reply.arrays["fisher"] * share for reply, share in parts), torch.zeros_like(state.params)
            )
        )


@dataclass(frozen=True)
class ElasticAscent(Ascent):
    """Ascent at the targets that parameters resist the more, the more they matter."""

    objective: str | None = "elastic_ascent"
    penalty: float = 5000.0

    def arrays(self, request: Request, state: State) -> Mapping[str, Tensor]:
        return {
            **super().arrays(request, state),
            "anchor": request.params,
            "fisher": state.memory["fisher"],
            "penalty": torch.tensor(self.penalty),
        }


@method(
    "ewcsga",
    paper="Wu et al., IEEE Network 2022",
    summary="gradient ascent at the targets with an elastic-weight-consolidation penalty",
    online="targets, then retained",
)
def ewcsga(
    schedule: Schedule,
    *,
    penalty: float = 5000.0,
    clip: float = 5.0,
    fisher: Literal["target", "retained"] = "target",
) -> tuple[Phase, ...]:
    """``penalty`` is λ; ``fisher`` says on whose data the Fisher diagonal is taken."""
    require(clip > 0, "clip", clip, "positive")
    require(penalty >= 0, "penalty", penalty, "zero or more")
    return (
        ImportanceEstimate(min(1, schedule.unlearn_rounds), schedule.unlearn_lr, fisher),
        ElasticAscent(schedule.unlearn_rounds, schedule.unlearn_lr, clip=clip, penalty=penalty),
        Averaging(schedule.recover_rounds, schedule.recover_lr),
    )
