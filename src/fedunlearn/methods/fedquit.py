"""FedQUIT: the targets learn from a teacher without their labels (Mora et al., arXiv 2408.07587)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import kl_div

from ..client.losses import Loss, teacher_logits
from ..core import Batch, Job, LabelTask, Phase, Request, State, require, train
from ..core.registry import loss, method
from .fedavg import Averaging
from .schedule import Schedule
from .targets import TargetTraining


@loss(
    "virtual_teacher",
    summary="another model's predictions with the label's logit lowered",
    part_of="fedquit",
    forgets="yes",
)
def virtual_teacher(task: LabelTask, job: Job) -> Loss:
    """KL divergence from the teacher's prediction, with the label's logit lowered to the minimum."""
    teacher = job.arrays["teacher"]

    def minimised(model: nn.Module, batch: Batch) -> Tensor:
        learned = task.logits(model, batch)
        lowered = without_label(teacher_logits(task, model, teacher, batch), task.labels(batch))
        return kl_div(learned.log_softmax(1), lowered.log_softmax(1), reduction="batchmean", log_target=True)

    return minimised


def without_label(logits: Tensor, labels: Tensor) -> Tensor:
    """The logits, with the label's logit replaced by the smallest in its row."""
    return logits.scatter(1, labels.unsqueeze(1), logits.amin(1, keepdim=True))


@dataclass(frozen=True)
class Quitting(TargetTraining):
    """The targets learn what ω⁰ would predict if it did not know their labels."""

    needs: ClassVar[frozenset[str]] = frozenset({"labels"})

    def message_bytes(self, request: Request) -> int:
        return 2 * super().message_bytes(request)

    def job(self, request: Request, state: State) -> Job:
        return train(state.params, "virtual_teacher", arrays={"teacher": request.params})


@method(
    "fedquit",
    paper="Mora et al., arXiv 2408.07587",
    source="paper's code",
    summary="the targets distil from the old model with their labels' logits lowered",
    clean_targets="left too much",
)
def fedquit(schedule: Schedule, *, rounds: int = 1) -> tuple[Phase, ...]:
    """``rounds`` is the number of rounds of local training at the targets.

    Deviation: plain SGD, as in every method here; the authors use Adam.
    """
    require(rounds >= 1, "rounds", rounds, "at least 1")
    once = min(rounds, schedule.rounds if schedule.unlearn_rounds else 0)
    return (
        Quitting(once, schedule.unlearn_lr),
        Averaging(schedule.rounds - once, schedule.recover_lr),
    )
