"""MoDe: momentum degradation and memory guidance (Zhao et al., IEEE Internet of Things Journal 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..client.losses import Loss, teacher_logits
from ..core import (
    EVERYBODY,
    RETAINED,
    Batch,
    Buffers,
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
)
from ..core.registry import loss, method
from .fedavg import Averaging
from .schedule import Schedule

Guidance = Literal["all", "target", "none"]


@loss(
    "pseudo_labels",
    summary="cross-entropy to the labels that another model predicts",
    part_of="mode",
    forgets="yes",
)
def pseudo_labels(task: LabelTask, job: Job) -> Loss:
    """Learn another model's predicted classes instead of the labels."""
    teacher, buffers = job.arrays["teacher"], unprefixed("teacher", job.arrays)

    def minimised(model: nn.Module, batch: Batch) -> Tensor:
        predicted = teacher_logits(task, model, teacher, batch, buffers).argmax(1)
        return cross_entropy(task.logits(model, batch), predicted)

    return minimised


def unprefixed(model: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The buffers of a model among tensors, where they are called ``MODEL/BUFFER``."""
    return {
        name.removeprefix(f"{model}/"): tensor
        for name, tensor in tensors.items()
        if name.startswith(f"{model}/")
    }


def prefixed(model: str, buffers: Buffers) -> dict[str, Tensor]:
    """The opposite of ``unprefixed``."""
    return {f"{model}/{name}": buffer for name, buffer in buffers.items()}


@dataclass(frozen=True)
class MomentumDegradation(Phase):
    """The retained clients train a new model θ, which ω moves towards; then θ guides the clients.

    θ keeps buffers of its own: BatchNorm statistics of one model do not fit the other.
    """

    momentum: float = 0.95
    guidance: Guidance = "all"
    degrade_lr: float = 0.05

    stage: ClassVar[Stage] = Stage.UNLEARNING
    needs: ClassVar[frozenset[str]] = frozenset({"fresh", "labels"})
    exchanges: ClassVar[int] = 2

    @property
    def asks(self) -> frozenset[Role]:
        return RETAINED if self.guidance == "none" else EVERYBODY

    def message_bytes(self, request: Request) -> int:
        return 2 * super().message_bytes(request)

    def start(self, request: Request, state: State) -> State:
        assert request.fresh is not None
        fresh = request.fresh("mode")
        return (
            super()
            .start(request, state)
            .remember(degraded=fresh.params, **prefixed("degraded", fresh.buffers))
        )

    def round(self, request: Request, state: State) -> Round:
        # Degradation: θ learns from the retained clients, ω ← λ ω + (1 − λ) θ.
        theta, buffers = state.memory["degraded"], unprefixed("degraded", state.memory)
        job = train(theta, lr=self.degrade_lr, buffers=buffers)
        replies = yield dict.fromkeys(request.asked, job)
        taught = replies.some(request.asked)
        theta, buffers = theta - taught.average(), {**taught.merged_buffers(buffers)}
        state = state.step((1 - self.momentum) * (theta - state.params))
        state = state.remember(degraded=theta, **prefixed("degraded", buffers))
        if self.guidance == "none":
            return state
        # Guidance: ω learns θ's predictions at the targets, and the labels at the other clients.
        guided = request.asked if self.guidance == "all" else ()
        replies = yield {client: train(state.params) for client in guided} | {
            target: train(
                state.params, "pseudo_labels", arrays={"teacher": theta, **prefixed("teacher", buffers)}
            )
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
    source="summaries",
    summary="pulls the model towards a new one that only the retained clients train",
    clean_targets="forgot enough and harmed retained clients",
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
