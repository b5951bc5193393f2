"""FedKdu: erase the targets' updates, then distil the old model on public data (Wu, Zhu and Mitra, 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..client.losses import Loss, teacher_logits
from ..core import NOBODY, Batch, Job, LabelTask, Phase, Request, Role, Round, Stage, State, require, train
from ..core.registry import loss, method
from .fedavg import Averaging
from .schedule import Schedule


@loss(
    "distillation", summary="cross-entropy to another model's predictions, without labels", part_of="fedkdu"
)
def distillation(task: LabelTask, job: Job) -> Loss:
    """Cross-entropy to the teacher's probabilities at temperature τ, times τ²."""
    teacher, temperature = job.arrays["teacher"], float(job.config["temperature"])

    def minimised(model: nn.Module, batch: Batch) -> Tensor:
        soft = (teacher_logits(task, model, teacher, batch) / temperature).softmax(1)
        return cross_entropy(task.logits(model, batch) / temperature, soft) * temperature**2

    return minimised


@dataclass(frozen=True)
class UpdateErasure(Phase):
    """ω⁰ − Σ_t p_u U_u: the model without the updates of the targets."""

    stage: ClassVar[Stage] = Stage.UNLEARNING
    needs: ClassVar[frozenset[str]] = frozenset({"updates"})
    asks: ClassVar[frozenset[Role]] = NOBODY
    reveals: ClassVar[tuple[str, ...]] = (
        "retained clients: the targets' recorded contribution, as the distance of the new model from ω⁰",
    )

    def round(self, request: Request, state: State) -> State:
        added = sum(
            (request.history.of("updates", target) for target in request.targets),
            torch.zeros_like(state.params),
        )
        share = float(torch.linalg.vector_norm(added) / torch.linalg.vector_norm(request.params))
        return state.step(-added, erased=share)


@dataclass(frozen=True)
class PublicDistillation(Phase):
    """The erased model learns from the old model on public data."""

    temperature: float = 2.0

    stage: ClassVar[Stage] = Stage.POSTTRAINING
    needs: ClassVar[frozenset[str]] = frozenset({"labels", "public"})
    asks: ClassVar[frozenset[Role]] = NOBODY

    def round(self, request: Request, state: State) -> Round:
        assert request.public is not None
        teacher = {"teacher": request.params}
        job = train(state.params, "distillation", arrays=teacher, temperature=self.temperature)
        replies = yield {request.public: job}
        return state.step(-replies.mean())


@method(
    "fedkdu",
    paper="Wu, Zhu and Mitra, arXiv 2201.09441",
    source="summaries and public code",
    summary="erases the targets' updates, then distils the old model on public data",
)
def fedkdu(schedule: Schedule, *, epochs: int = 5, temperature: float = 2.0) -> tuple[Phase, ...]:
    """``epochs`` of distillation on public data, one per round; ``temperature`` softens the teacher."""
    require(epochs >= 0, "epochs", epochs, "zero or more")
    require(temperature > 0, "temperature", temperature, "positive")
    once, rest = schedule.in_one_round
    epochs = min(epochs * once, rest)
    return (
        UpdateErasure(once, schedule.unlearn_lr),
        PublicDistillation(epochs, schedule.unlearn_lr, temperature),
        Averaging(rest - epochs, schedule.recover_lr),
    )
