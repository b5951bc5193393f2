"""FedKdu: erase the targets' updates, then distil the old model on public data (Wu, Zhu and Mitra, 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..core import ClientId, Job, Objective, Phase, Replies, Request, Stage, State
from ..core.registry import method
from ..objectives import Minimise, answers, objective
from .fedavg import Averaging
from .schedule import Schedule, require


@dataclass(frozen=True, kw_only=True)
class Distillation(Minimise):
    """Cross-entropy to a teacher's probabilities at a temperature, times its square."""

    teacher: Tensor
    temperature: float = 1.0

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        soft = (answers(model, self.teacher, x) / self.temperature).softmax(1)
        return cross_entropy(model(x) / self.temperature, soft) * self.temperature**2


@objective("distillation", summary="learning what another model says, without labels", part_of="fedkdu")
def _distillation(arrays: Mapping[str, Tensor]) -> Objective:
    return Distillation(teacher=arrays["teacher"], temperature=float(arrays["temperature"]))


@dataclass(frozen=True)
class UpdateErasure(Phase):
    """ω⁰ − Σ_t p_u U_u: the model without anything that the targets ever added."""

    stage: ClassVar[Stage] = Stage.UNLEARNING
    needs: ClassVar[frozenset[str]] = frozenset({"updates"})

    def ask(self, request: Request, state: State) -> Mapping[ClientId, Job]:
        return {}

    def tell(self, request: Request, state: State, replies: Replies) -> State:
        added = sum(
            (request.recorded("updates", target) for target in request.targets),
            torch.zeros_like(state.params),
        )
        share = float(torch.linalg.vector_norm(added) / torch.linalg.vector_norm(request.params))
        return state.step(-added, erased=share)


@dataclass(frozen=True)
class PublicDistillation(Phase):
    """The erased model learns from the old one on data that nobody asked to forget."""

    temperature: float = 2.0

    stage: ClassVar[Stage] = Stage.UNLEARNING
    needs: ClassVar[frozenset[str]] = frozenset({"public"})
    forgets: ClassVar[bool] = False

    def ask(self, request: Request, state: State) -> Mapping[ClientId, Job]:
        assert request.public is not None
        teacher = {"teacher": request.params, "temperature": torch.tensor(self.temperature)}
        return {request.public: Job(state.params, "distillation", teacher)}

    def tell(self, request: Request, state: State, replies: Replies) -> State:
        return state.step(-replies.mean())


@method(
    "fedkdu",
    paper="Wu, Zhu and Mitra, arXiv 2201.09441",
    summary="erases the targets' updates, then distils the old model on public data",
    online="retained",
)
def fedkdu(schedule: Schedule, *, epochs: int = 5, temperature: float = 2.0) -> tuple[Phase, ...]:
    """``epochs`` of distillation on the public data, each a round; ``temperature`` softens the teacher."""
    require(epochs >= 0, "epochs", epochs, "zero or more")
    require(temperature > 0, "temperature", temperature, "positive")
    once, rest = schedule.in_one_round
    epochs = min(epochs * once, rest)
    return (
        UpdateErasure(once, schedule.unlearn_lr),
        PublicDistillation(epochs, schedule.unlearn_lr, temperature),
        Averaging(rest - epochs, schedule.recover_lr),
    )
