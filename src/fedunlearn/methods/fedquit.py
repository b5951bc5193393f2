"""FedQUIT: the targets learn from a teacher without their labels (Mora et al., arXiv 2408.07587)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import kl_div

from ..core import Objective, Phase, Request, State
from ..core.registry import method
from ..objectives import Minimise, answers, objective
from .fedavg import Averaging
from .schedule import Schedule, require
from .targets import TargetTraining


@dataclass(frozen=True, kw_only=True)
class VirtualTeacher(Minimise):
    """KL from the teacher's answer with the label's logit put down to the least of all."""

    teacher: Tensor

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return kl_div(
            model(x).log_softmax(1),
            unknowing(answers(model, self.teacher, x), y).log_softmax(1),
            reduction="batchmean",
            log_target=True,
        )


def unknowing(logits: Tensor, labels: Tensor) -> Tensor:
    """The logits with that of the label replaced by the smallest of the row."""
    return logits.scatter(1, labels.unsqueeze(1), logits.amin(1, keepdim=True))


@objective(
    "virtual_teacher", summary="learning another model's answers, except for the labels", part_of="fedquit"
)
def _virtual_teacher(arrays: Mapping[str, Tensor]) -> Objective:
    return VirtualTeacher(teacher=arrays["teacher"])


@dataclass(frozen=True)
class Quitting(TargetTraining):
    """The targets learn from ω⁰ what it would say if it did not know their labels."""

    objective: str | None = "virtual_teacher"

    def arrays(self, request: Request, state: State) -> Mapping[str, Tensor]:
        return {"teacher": request.params}


@method(
    "fedquit",
    paper="Mora et al., arXiv 2408.07587",
    summary="the targets distil from the old model with their labels' logits put down",
    online="targets, then retained",
)
def fedquit(schedule: Schedule, *, rounds: int = 1) -> tuple[Phase, ...]:
    """``rounds`` of local training at the targets.

    Deviation: plain SGD as in every method here, where the authors use Adam.
    """
    require(rounds >= 1, "rounds", rounds, "at least 1")
    once = min(rounds, schedule.rounds if schedule.unlearn_rounds else 0)
    return (
        Quitting(once, schedule.unlearn_lr),
        Averaging(schedule.rounds - once, schedule.recover_lr),
    )
