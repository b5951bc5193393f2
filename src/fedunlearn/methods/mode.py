"""MoDe: momentum degradation and memory guidance (Zhao et al., IEEE Internet of Things Journal 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..client.losses import Loss, teacher_logits
from ..core import Batch, Job, LabelTask, Phase, Request, Round, Stage, State, require, train
from ..core.registry import loss, method
from .fedavg import Averaging
from .schedule import Schedule

Guidance = Literal["all", "target", "none"]


@loss("pseudo_labels", summary="cross-entropy to the labels that another model predicts", part_of="mode")
def pseudo_labels(task: LabelTask, job: Job) -> Loss:
    """Learn another model's predicted classes instead of the labels."""
    teacher = job.arrays["teacher"]

    def minimised(model: nn.Module, batch: Batch) -> Tensor:
        return cross_entropy(task.logits(model, batch), teacher_logits(task, model, teacher, batch).argmax(1))

    return minimised


@dataclass(frozen=True)
class MomentumDegradation(Phase):
    """The retained clients train a new model θ, which ω moves towards; then θ guides the clients."""

    momentum: float = 0.95
    guidance: Guidance = "all"
    degrade_lr: float = 0.05

    stage: ClassVar[Stage] = Stage.UNLEARNING
    needs: ClassVar[frozenset[str]] = frozenset({"fresh", "labels"})

    def start(self, request: Request, state: State) -> State:
        assert request.fresh is not None
        return super().start(request, state).remember(degraded=request.fresh("mode").params)

    def round(self, request: Request, state: State) -> Round:
        # Degradation: θ learns from the retained clients, ω ← λ ω + (1 − λ) θ.
        theta = state.memory["degraded"]
        replies = yield {client: train(theta, lr=self.degrade_lr) for client in request.asked}
        taught = replies.some(request.asked)
        theta = theta - taught.average()
        state = state.step((1 - self.momentum) * (theta - state.params)).remember(degraded=theta)
        if self.guidance == "none":
            return state
        # Guidance: ω learns θ's predictions at the targets, and the labels at the other clients.
        guided = request.asked if self.guidance == "all" else ()
        replies = yield {client: train(state.params) for client in guided} | {
            target: train(state.params, "pseudo_labels", arrays={"teacher": theta})
            for target in request.targets
        }
        replies.every(request.targets)
        if self.guidance == "all":
            return state.step(-replies.average())
        own, others = (sum(reply.examples for reply in group.values()) for group in (replies, taught))
        return state.step(-replies.average() * (own / (own + others)))


@method(
    "mode",
    paper="Zhao et al., IEEE IoT-J 2023",
    summary="pulls the model towards a new one that only the retained clients train",
    online="targets and retained, then retained",
)
def mode(schedule: Schedule, *, momentum: float = 0.95, guidance: Guidance = "all") -> tuple[Phase, ...]:
    """``guidance`` selects the guided clients: ``all`` (as published), ``target`` (as FedOSD's table of
    runtimes implies), or ``none``."""
    require(0 <= momentum <= 1, "momentum", momentum, "between 0 and 1")
    return (
        MomentumDegradation(
            schedule.unlearn_rounds, schedule.unlearn_lr, momentum, guidance, schedule.pretrain_lr
        ),
        Averaging(schedule.recover_rounds, schedule.recover_lr),
    )
