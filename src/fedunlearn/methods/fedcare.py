"""FedCARE: ascent that spares what made-up examples show, and a recovery without rollback (arXiv 2601.22589).

Read from the abstract alone: what it leaves open is ours, and docs/methods/fedcare.md lists it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..client.losses import Loss
from ..client.proxies import Proxies, class_proxies
from ..core import (
    RETAINED,
    Batch,
    Job,
    LabelTask,
    Phase,
    Request,
    Role,
    Round,
    Stage,
    State,
    require,
    train,
    vectors,
)
from ..core.registry import loss, method
from ..maths import project_off
from .schedule import Schedule
from .targets import TargetTraining


@loss(
    "conflict_aware_ascent",
    summary="gradient ascent that does not raise the loss on made-up examples of each class",
    part_of="fedcare",
    forgets="yes",
)
def conflict_aware_ascent(task: LabelTask, job: Job) -> Loss:
    """−L + α L_p with α = max(0, ∇L·∇L_p / ‖∇L_p‖²), a constant: its gradient is −∇L without the part that
    would raise L_p, the loss on the proxies."""
    origin, each = job.arrays["origin"], int(job.config["proxies"])
    made: list[Proxies] = []

    def minimised(model: nn.Module, batch: Batch) -> Tensor:
        if not made:
            made.append(class_proxies(task, model, origin, batch, each))
        parameters = vectors.trainable(model)
        ascent = -task.loss(model, batch)
        kept = made[0].loss(task, model)
        up, keep = (_gradient(part, parameters) for part in (ascent, kept))
        share = (-(up @ keep) / (keep @ keep).clamp(min=torch.finfo(keep.dtype).tiny)).clamp(min=0)
        return ascent + share * kept

    return minimised


def _gradient(found: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    slopes = torch.autograd.grad(found, parameters, retain_graph=True, materialize_grads=True)
    return torch.cat([slope.reshape(-1) for slope in slopes])


@dataclass(frozen=True)
class ConflictAwareAscent(TargetTraining):
    """The targets climb their loss as far as the knowledge of ω⁰ about the classes allows."""

    proxies: int = 5
    clip: float = 5.0

    needs: ClassVar[frozenset[str]] = frozenset({"labels"})

    def message_bytes(self, request: Request) -> int:
        return 2 * super().message_bytes(request)

    def job(self, request: Request, state: State) -> Job:
        origin = {"origin": request.params}
        return train(
            state.params,
            "conflict_aware_ascent",
            "clipped",
            arrays=origin,
            proxies=self.proxies,
            clip=self.clip,
        )


@dataclass(frozen=True)
class RecoveryWithoutRollback(Phase):
    """Averages the retained clients, without the part of the mean update that leads back towards ω⁰."""

    stage: ClassVar[Stage] = Stage.POSTTRAINING
    asks: ClassVar[frozenset[Role]] = RETAINED

    def round(self, request: Request, state: State) -> Round:
        replies = yield {client: train(state.params) for client in request.asked}
        away = torch.stack([state.params - anchor for anchor in (request.params, *request.anchors)])
        return state.step(-project_off(replies.some(request.asked).average(), away, rescale=False))


@method(
    "fedcare",
    paper="Li et al., arXiv 2601.22589",
    source="abstract",
    summary="ascent at the targets that spares made-up examples of each class, recovery without rollback",
)
def fedcare(schedule: Schedule, *, proxies: int = 5, clip: float = 5.0) -> tuple[Phase, ...]:
    """``proxies`` is the number of made-up examples of each class; ``clip`` bounds each step's gradient."""
    require(proxies >= 1, "proxies", proxies, "at least 1")
    require(clip > 0, "clip", clip, "positive")
    return (
        ConflictAwareAscent(schedule.unlearn_rounds, schedule.unlearn_lr, proxies, clip),
        RecoveryWithoutRollback(schedule.recover_rounds, schedule.recover_lr),
    )
